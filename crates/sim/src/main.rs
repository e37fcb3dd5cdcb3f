//! `sim`: runs histories by seed, and says which ones break a law and how to replay them.

use clap::Parser;
use perigee_replica::Plant;
use perigee_sim::{Mark, Marks, Options, Report, Scenario, run};
use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

/// Simulates replicated containers under chaos, and checks the laws.
#[derive(Debug, Parser)]
struct Arguments {
    /// How many seeds to run.
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Run this seed alone, and say how it went.
    #[arg(long)]
    seed: Option<u64>,
    /// Print each event.
    #[arg(long)]
    trace: bool,
    /// Switch on a deliberate fault.
    #[arg(long)]
    plant: Option<String>,
    /// Nothing goes wrong, but that the control store is away.
    #[arg(long)]
    store_away: bool,
    /// Find each deliberate fault, and print a table.
    #[arg(long)]
    plants: bool,
    /// Run each seed twice, and compare.
    #[arg(long)]
    twice: bool,
}

impl Arguments {
    fn scenario(&self) -> Scenario {
        if self.store_away {
            Scenario::StoreAway
        } else {
            Scenario::Chaos
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut out = std::io::stdout().lock();
    match simulate(&arguments, &mut out) {
        Ok(code) => code,
        // Nobody reads what is printed any more.
        Err(_) => ExitCode::from(1),
    }
}

fn simulate(arguments: &Arguments, out: &mut impl Write) -> std::io::Result<ExitCode> {
    let plant = match arguments.plant.as_deref().map(|n| (n, Plant::from_name(n))) {
        Some((name, None)) => {
            writeln!(out, "error: no deliberate fault is named `{name}`")?;
            let names: Vec<&str> = Plant::ALL.iter().map(|p| p.name()).collect();
            writeln!(out, "hint: {}", names.join(", "))?;
            return Ok(ExitCode::from(2));
        }
        Some((_, plant)) => plant,
        None => None,
    };
    if arguments.plants {
        return plants(arguments, out);
    }
    if let Some(seed) = arguments.seed {
        return one(seed, plant, arguments, out);
    }
    many(arguments, plant, out)
}

fn one(
    seed: u64,
    plant: Option<Plant>,
    arguments: &Arguments,
    out: &mut impl Write,
) -> std::io::Result<ExitCode> {
    let (scenario, trace) = (arguments.scenario(), arguments.trace);
    let report = run(Options {
        scenario,
        seed,
        plant,
        trace,
    });
    writeln!(
        out,
        "seed {seed}: {} events, hash {:016x}",
        report.events, report.hash
    )?;
    tell(&report, seed, plant, out)?;
    Ok(verdict(report.violation.is_some()))
}

fn many(
    arguments: &Arguments,
    plant: Option<Plant>,
    out: &mut impl Write,
) -> std::io::Result<ExitCode> {
    let began = Instant::now();
    let mut marks = Marks::default();
    let (mut broken, mut events) = (0, 0);
    for seed in arguments.from..arguments.from + arguments.seeds {
        let options = Options {
            scenario: arguments.scenario(),
            seed,
            plant,
            trace: false,
        };
        let report = run(options);
        marks.add(&report.marks);
        events += report.events;
        if report.violation.is_some() {
            broken += 1;
            tell(&report, seed, plant, out)?;
        }
        if arguments.twice && run(options) != report {
            broken += 1;
            writeln!(out, "seed {seed}: a second run went another way")?;
        }
    }
    let took = began.elapsed().as_secs_f64();
    let rate = arguments.seeds as f64 / took * 60.0;
    writeln!(
        out,
        "{} seeds, {broken} broken, {events} events, {took:.1} s, {rate:.0} seeds/min",
        arguments.seeds
    )?;
    for (mark, text) in Mark::ALL {
        let count = marks.0[*mark as usize];
        let never = if count == 0 { "  (never met)" } else { "" };
        writeln!(out, "{count:>10}  {text}{never}")?;
    }
    Ok(verdict(broken > 0))
}

fn plants(arguments: &Arguments, out: &mut impl Write) -> std::io::Result<ExitCode> {
    let mut missed = 0;
    for &plant in Plant::ALL {
        let seeds = arguments.from..arguments.from + arguments.seeds;
        let found = seeds.clone().find_map(|seed| {
            let report = run(Options {
                scenario: Scenario::Chaos,
                seed,
                plant: Some(plant),
                trace: false,
            });
            report.violation.map(|violation| (seed, violation))
        });
        match found {
            Some((seed, violation)) => writeln!(
                out,
                "{:<28} seed {seed:<6} {}: {}",
                plant.name(),
                violation.law,
                violation.what
            )?,
            None => {
                missed += 1;
                writeln!(out, "{:<28} NOT FOUND ({})", plant.name(), plant.text())?;
            }
        }
        out.flush()?;
    }
    writeln!(
        out,
        "{} of {} found",
        Plant::ALL.len() - missed,
        Plant::ALL.len()
    )?;
    Ok(verdict(missed > 0))
}

fn tell(
    report: &Report,
    seed: u64,
    plant: Option<Plant>,
    out: &mut impl Write,
) -> std::io::Result<()> {
    let Some(violation) = &report.violation else {
        return Ok(());
    };
    let plant = plant.map_or(String::new(), |p| format!(" --plant {}", p.name()));
    let at = violation.at as f64 / 1e6;
    writeln!(
        out,
        "seed {seed}: law `{}` broken at {at:.6} s: {}",
        violation.law, violation.what
    )?;
    writeln!(out, "  replay: sim --seed {seed}{plant} --trace")
}

fn verdict(broken: bool) -> ExitCode {
    ExitCode::from(u8::from(broken))
}

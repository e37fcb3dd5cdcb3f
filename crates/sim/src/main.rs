//! `sim`: runs histories by seed, and says which ones break a law and how to replay them.

use clap::Parser;
use perigee_sim::{Scenario, Violation, names};
use std::io::Write;
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Simulates replicated containers under chaos, and checks the laws.
#[derive(Debug, Parser)]
struct Arguments {
    /// How many seeds to run.
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Run seeds for so long instead; it fails, too, when something was never met that is to be met.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    minutes: Option<u32>,
    /// How many seeds to run at once; by default one for each processor.
    #[arg(long)]
    jobs: Option<NonZeroUsize>,
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
    /// Find each deliberate fault from several starts, and print how many seeds that takes
    #[arg(long)]
    medians: bool,
    /// Run each seed twice, and compare.
    #[arg(long)]
    twice: bool,
    /// Simulate a namespace over several containers, not one container with its bytes.
    #[arg(long)]
    names: bool,
}

/// A deliberate fault of either world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Chain(perigee_replica::Plant),
    Names(perigee_meta::Plant),
}

impl Fault {
    fn all() -> Vec<Self> {
        let chain = perigee_replica::Plant::ALL.iter().copied().map(Self::Chain);
        let names = perigee_meta::Plant::ALL.iter().copied().map(Self::Names);
        chain.chain(names).collect()
    }

    fn name(self) -> &'static str {
        match self {
            Self::Chain(plant) => plant.name(),
            Self::Names(plant) => plant.name(),
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Chain(plant) => plant.text(),
            Self::Names(plant) => plant.text(),
        }
    }
}

/// Which histories are simulated.
#[derive(Debug, Clone, Copy)]
enum World {
    /// One container with its bytes.
    Chain(Scenario, Option<perigee_replica::Plant>),
    /// A namespace over several containers.
    Names(Option<perigee_meta::Plant>),
}

/// How one history went.
#[derive(Debug, PartialEq)]
struct Went {
    violation: Option<Violation>,
    hash: u64,
    events: u64,
    /// What was met, and how often.
    marks: Vec<(&'static str, u64)>,
}

impl World {
    fn of(fault: Fault) -> Self {
        match fault {
            Fault::Chain(plant) => Self::Chain(Scenario::Chaos, Some(plant)),
            Fault::Names(plant) => Self::Names(Some(plant)),
        }
    }

    fn run(self, seed: u64, trace: bool) -> Went {
        match self {
            Self::Chain(scenario, plant) => {
                let report = perigee_sim::run(perigee_sim::Options {
                    scenario,
                    seed,
                    plant,
                    trace,
                });
                let marks = perigee_sim::Mark::ALL.iter();
                Went {
                    violation: report.violation,
                    hash: report.hash,
                    events: report.events,
                    marks: marks
                        .map(|(mark, text)| (*text, report.marks.0[*mark as usize]))
                        .collect(),
                }
            }
            Self::Names(plant) => {
                let report = names::run(names::Options { seed, plant, trace });
                let marks = names::Mark::ALL.iter();
                Went {
                    violation: report.violation,
                    hash: report.hash,
                    events: report.events,
                    marks: marks
                        .map(|(mark, text)| (*text, report.marks.0[*mark as usize]))
                        .collect(),
                }
            }
        }
    }

    /// The arguments that simulate it again.
    fn words(self) -> String {
        match self {
            Self::Chain(_, Some(plant)) => format!(" --plant {}", plant.name()),
            Self::Chain(Scenario::StoreAway, None) => " --store-away".to_owned(),
            Self::Chain(Scenario::Chaos, None) => String::new(),
            Self::Names(Some(plant)) => format!(" --plant {}", plant.name()),
            Self::Names(None) => " --names".to_owned(),
        }
    }
}

/// How often each deliberate fault is looked for.
const STARTS: u64 = 9;

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
    if arguments.medians {
        return medians(arguments, out);
    }
    if arguments.plants {
        return plants(arguments, out);
    }
    let world = match &arguments.plant {
        Some(name) => {
            let Some(fault) = Fault::all().into_iter().find(|f| f.name() == name) else {
                writeln!(out, "error: no deliberate fault is named `{name}`")?;
                let names: Vec<&str> = Fault::all().iter().map(|f| f.name()).collect();
                writeln!(out, "hint: {}", names.join(", "))?;
                return Ok(ExitCode::from(2));
            };
            World::of(fault)
        }
        None if arguments.names => World::Names(None),
        None if arguments.store_away => World::Chain(Scenario::StoreAway, None),
        None => World::Chain(Scenario::Chaos, None),
    };
    match arguments.seed {
        Some(seed) => one(seed, world, arguments, out),
        None => many(arguments, world, out),
    }
}

fn one(
    seed: u64,
    world: World,
    arguments: &Arguments,
    out: &mut impl Write,
) -> std::io::Result<ExitCode> {
    let went = world.run(seed, arguments.trace);
    writeln!(
        out,
        "seed {seed}: {} events, hash {:016x}",
        went.events, went.hash
    )?;
    tell(&went, seed, world, out)?;
    Ok(verdict(went.violation.is_some()))
}

/// What many histories came to.
#[derive(Debug, Default)]
struct Sum {
    seeds: u64,
    broken: u64,
    events: u64,
    marks: Vec<(&'static str, u64)>,
}

impl Sum {
    fn add(&mut self, went: &Went) {
        self.seeds += 1;
        self.events += went.events;
        self.marks.resize(went.marks.len(), ("", 0));
        for (sum, (text, count)) in self.marks.iter_mut().zip(&went.marks) {
            *sum = (*text, sum.1 + count);
        }
    }
}

/// One seed's history, and whether a second run of it went the same way.
struct Ran {
    seed: u64,
    went: Went,
    repeats: bool,
}

/// Runs seeds on all processors until there are none left, or the time is over.
fn run_seeds(arguments: &Arguments, world: World, mut take: impl FnMut(Ran)) {
    let until = arguments
        .minutes
        .map(|minutes| Instant::now() + Duration::from_secs(60 * u64::from(minutes)));
    let end = match until {
        Some(_) => u64::MAX,
        None => arguments.from.saturating_add(arguments.seeds),
    };
    let next = AtomicU64::new(arguments.from);
    let jobs = arguments
        .jobs
        .or_else(|| thread::available_parallelism().ok())
        .map_or(1, NonZeroUsize::get);
    let (done, ran) = mpsc::sync_channel(jobs * 4);
    thread::scope(|scope| {
        for _ in 0..jobs {
            let (done, next) = (done.clone(), &next);
            scope.spawn(move || {
                while until.is_none_or(|until| Instant::now() < until) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        break;
                    }
                    let went = world.run(seed, false);
                    let repeats = !arguments.twice || world.run(seed, false) == went;
                    let one = Ran {
                        seed,
                        went,
                        repeats,
                    };
                    if done.send(one).is_err() {
                        break;
                    }
                }
            });
        }
        drop(done);
        ran.into_iter().for_each(&mut take);
    });
}

fn many(arguments: &Arguments, world: World, out: &mut impl Write) -> std::io::Result<ExitCode> {
    let began = Instant::now();
    let mut sum = Sum::default();
    let mut told = Ok(());
    run_seeds(arguments, world, |ran| {
        sum.add(&ran.went);
        if ran.went.violation.is_some() || !ran.repeats {
            sum.broken += 1;
        }
        if told.is_ok() {
            told = tell_of(&ran, world, out);
        }
    });
    told?;
    let took = began.elapsed().as_secs_f64();
    let Sum {
        seeds,
        broken,
        events,
        marks,
    } = sum;
    let rate = seeds as f64 / took * 60.0;
    writeln!(
        out,
        "{seeds} seeds, {broken} broken, {events} events, {took:.1} s, {rate:.0} seeds/min"
    )?;
    let mut unmet = 0;
    for (text, count) in marks {
        let never = if count == 0 { "  (never met)" } else { "" };
        unmet += u32::from(count == 0);
        writeln!(out, "{count:>10}  {text}{never}")?;
    }
    // A few seeds need not meet everything.
    Ok(verdict(
        broken > 0 || (unmet > 0 && arguments.minutes.is_some()),
    ))
}

fn tell_of(ran: &Ran, world: World, out: &mut impl Write) -> std::io::Result<()> {
    tell(&ran.went, ran.seed, world, out)?;
    if !ran.repeats {
        writeln!(out, "seed {}: a second run went another way", ran.seed)?;
    }
    Ok(())
}

fn plants(arguments: &Arguments, out: &mut impl Write) -> std::io::Result<ExitCode> {
    let all = Fault::all();
    let chosen = all
        .iter()
        .filter(|fault| !arguments.names || matches!(fault, Fault::Names(_)));
    let (mut found, mut count) = (0, 0);
    for &fault in chosen {
        count += 1;
        let mut seeds = arguments.from..arguments.from + arguments.seeds;
        let first = seeds.find_map(|seed| {
            let went = World::of(fault).run(seed, false);
            went.violation.map(|violation| (seed, violation))
        });
        match first {
            Some((seed, violation)) => {
                found += 1;
                writeln!(
                    out,
                    "{:<28} seed {seed:<6} {}: {}",
                    fault.name(),
                    violation.law,
                    violation.what
                )?;
            }
            None => writeln!(out, "{:<28} NOT FOUND ({})", fault.name(), fault.text())?,
        }
        out.flush()?;
    }
    writeln!(out, "{found} of {count} found")?;
    Ok(verdict(found < count))
}

/// How many seeds a deliberate fault takes, over several starts; a table for the documentation.
fn medians(arguments: &Arguments, out: &mut impl Write) -> std::io::Result<ExitCode> {
    let began = Instant::now();
    writeln!(
        out,
        "| Deliberate fault | What it leaves out | Median | Most |"
    )?;
    writeln!(out, "| --- | --- | --- | --- |")?;
    let mut missed = 0;
    for fault in Fault::all() {
        let mut counts: Vec<u64> = (0..STARTS)
            .map(|start| {
                let from = arguments.from + start * arguments.seeds;
                let mut seeds = from..from + arguments.seeds;
                let found =
                    seeds.find(|seed| World::of(fault).run(*seed, false).violation.is_some());
                found.map_or(u64::MAX, |seed| seed - from + 1)
            })
            .collect();
        counts.sort_unstable();
        let [median, most] = [counts[counts.len() / 2], counts[counts.len() - 1]];
        missed += u32::from(median == u64::MAX);
        let shown = |count: u64| match count {
            u64::MAX => format!("over {}", arguments.seeds),
            count => count.to_string(),
        };
        writeln!(
            out,
            "| `{}` | {} | {} | {} |",
            fault.name(),
            fault.text(),
            shown(median),
            shown(most)
        )?;
        out.flush()?;
    }
    writeln!(
        out,
        "\n{missed} not found at most starts; {:.0} s",
        began.elapsed().as_secs_f64()
    )?;
    Ok(verdict(missed > 0))
}

fn tell(went: &Went, seed: u64, world: World, out: &mut impl Write) -> std::io::Result<()> {
    let Some(violation) = &went.violation else {
        return Ok(());
    };
    let at = violation.at as f64 / 1e6;
    writeln!(
        out,
        "seed {seed}: law `{}` broken at {at:.6} s: {}",
        violation.law, violation.what
    )?;
    writeln!(out, "  replay: sim --seed {seed}{} --trace", world.words())
}

fn verdict(broken: bool) -> ExitCode {
    ExitCode::from(u8::from(broken))
}

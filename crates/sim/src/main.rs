//! `sim`: runs histories by seed, and says which ones break a law and how to replay them.

mod fault;
mod worlds;

use clap::Parser;
use fault::Fault;
use perigee_sim::numbered::Kind;
use perigee_sim::shrink::{Broken, shrink};
use perigee_sim::{Detail, Drift, LeftOut, Numbers, Scenario, Violation};
use std::io::Write;
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use worlds::{Clocks, Scenarios, Went, World};

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
    /// Find a smaller history of this seed that breaks the same law, and print it.
    #[arg(long, requires = "seed", conflicts_with_all = ["without", "without_operations", "calm_from_us", "weather"])]
    shrink: bool,
    /// Leave out strikes by their numbers, such as 3,5-9,20-
    #[arg(long, default_value_t, requires = "seed", hide_default_value = true)]
    without: Numbers,
    /// Leave out operations of sessions by their numbers.
    #[arg(long, default_value_t, requires = "seed", hide_default_value = true)]
    without_operations: Numbers,
    /// End the chaos so early.
    #[arg(long, requires = "seed")]
    calm_from_us: Option<u64>,
    /// Draw delays, and all that has no number, anew.
    #[arg(long, requires = "seed", default_value_t)]
    weather: u64,
    /// Switch on a deliberate fault.
    #[arg(long)]
    plant: Option<String>,
    /// Nothing goes wrong, but that the control store is away.
    #[arg(long)]
    store_away: bool,
    /// In all histories disks spoil what they were given, as in each sixteenth otherwise.
    #[arg(long, conflicts_with_all = ["store_away", "drift"])]
    bad_disks: bool,
    /// In all histories clocks run several times faster or slower than the protocol reckons with, and jump, as in each
    /// eighth otherwise; only what fencing protects is checked there.
    #[arg(long, conflicts_with = "store_away")]
    drift: bool,
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
    /// Simulate the lock service of a container.
    #[arg(long, conflicts_with_all = ["names", "store_away", "bad_disks", "drift"])]
    locks: bool,
    /// Simulate a striped file.
    #[arg(long, conflicts_with_all = ["names", "locks", "store_away", "bad_disks", "drift"])]
    stripes: bool,
    /// Simulate hosts that write behind.
    #[arg(long, conflicts_with_all = ["names", "locks", "stripes", "store_away", "bad_disks", "drift"])]
    behind: bool,
}

impl Arguments {
    const fn scenarios(&self) -> Scenarios {
        match (self.store_away, self.bad_disks) {
            (true, _) => Scenarios::All(Scenario::StoreAway),
            (false, true) => Scenarios::All(Scenario::BadDisks),
            (false, false) => Scenarios::BySeed,
        }
    }

    const fn clocks(&self) -> Clocks {
        match (self.store_away || self.bad_disks, self.drift) {
            (true, _) => Clocks::All(Drift::Within),
            (false, true) => Clocks::All(Drift::Beyond),
            (false, false) => Clocks::BySeed,
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
    let clocks = arguments.clocks();
    let world = match &arguments.plant {
        Some(name) => {
            let Some(fault) = Fault::all().into_iter().find(|f| f.name() == name) else {
                writeln!(out, "error: no deliberate fault is named `{name}`")?;
                let names: Vec<&str> = Fault::all().iter().map(|f| f.name()).collect();
                writeln!(out, "hint: {}", names.join(", "))?;
                return Ok(ExitCode::from(2));
            };
            World::of(fault, arguments.scenarios(), arguments.clocks())
        }
        None if arguments.names => World::Names(None, clocks),
        None if arguments.locks => World::Locks(None),
        None if arguments.stripes => World::Stripes(None),
        None if arguments.behind => World::Behind(None),
        None => World::Chain(arguments.scenarios(), None, clocks),
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
    if arguments.shrink && !world.shrinks() {
        writeln!(out, "error: a history of this world cannot be made smaller")?;
        return Ok(ExitCode::from(2));
    }
    if arguments.shrink {
        return smaller(seed, world, out);
    }
    let left_out = LeftOut {
        strikes: arguments.without.clone(),
        operations: arguments.without_operations.clone(),
        calm_from_us: arguments.calm_from_us,
        weather: arguments.weather,
    };
    let detail = if arguments.trace {
        Detail::Traced
    } else {
        Detail::Quiet
    };
    let went = world.run_without(seed, left_out, detail);
    writeln!(
        out,
        "seed {seed}: {} events, hash {:016x}",
        went.events, went.hash
    )?;
    tell(&went, seed, world, out)?;
    Ok(verdict(went.violation.is_some()))
}

/// Shrinks a history that breaks a law, and prints what is left of it.
fn smaller(seed: u64, world: World, out: &mut impl Write) -> std::io::Result<ExitCode> {
    let broken = |left_out: &LeftOut| {
        let went = world.run_without(seed, left_out.clone(), Detail::Listed);
        let happened = went.happened;
        let violation = went.violation;
        violation.map(|violation| Broken {
            violation,
            happened,
        })
    };
    let Some(first) = broken(&LeftOut::default()) else {
        writeln!(out, "seed {seed} breaks no law")?;
        return Ok(verdict(false));
    };
    let [strikes, operations] = [Kind::Strike, Kind::Operation].map(|kind| first.count(kind));
    let shrunk = shrink(first, broken);
    let left = &shrunk.broken;
    writeln!(
        out,
        "seed {seed}: {} of {strikes} strikes and {} of {operations} operations are left after {} runs",
        left.count(Kind::Strike),
        left.count(Kind::Operation),
        shrunk.runs
    )?;
    for happening in &left.happened {
        writeln!(out, "{happening}")?;
    }
    let Violation { law, what, at } = &left.violation;
    writeln!(
        out,
        "{:>10.6}  law `{law}` is broken: {what}",
        *at as f64 / 1e6
    )?;
    let LeftOut {
        strikes,
        operations,
        calm_from_us,
        weather,
    } = &shrunk.left_out;
    write!(out, "  replay: sim --seed {seed}{}", world.words())?;
    if !strikes.is_empty() {
        write!(out, " --without {strikes}")?;
    }
    if !operations.is_empty() {
        write!(out, " --without-operations {operations}")?;
    }
    if let Some(us) = calm_from_us {
        write!(out, " --calm-from-us {us}")?;
    }
    if *weather > 0 {
        write!(out, " --weather {weather}")?;
    }
    writeln!(out, " --trace")?;
    Ok(verdict(true))
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
                    let went = world.run(seed);
                    let repeats = !arguments.twice || world.run(seed) == went;
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
        .filter(|fault| !arguments.names || matches!(fault, Fault::Names(_)))
        .filter(|fault| !arguments.locks || matches!(fault, Fault::Locks(_)))
        .filter(|fault| !arguments.stripes || matches!(fault, Fault::Stripes(_)))
        .filter(|fault| !arguments.behind || matches!(fault, Fault::Behind(_)));
    let (mut found, mut count) = (0, 0);
    for &fault in chosen {
        count += 1;
        let mut seeds = arguments.from..arguments.from + arguments.seeds;
        let first = seeds.find_map(|seed| {
            let went = World::of(fault, arguments.scenarios(), arguments.clocks()).run(seed);
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
                let found = seeds.find(|seed| {
                    World::of(fault, arguments.scenarios(), arguments.clocks())
                        .run(*seed)
                        .violation
                        .is_some()
                });
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
    let words = world.words();
    writeln!(out, "  replay: sim --seed {seed}{words} --trace")?;
    match world.shrinks() {
        true => writeln!(out, "  smaller: sim --seed {seed}{words} --shrink"),
        false => Ok(()),
    }
}

fn verdict(broken: bool) -> ExitCode {
    ExitCode::from(u8::from(broken))
}

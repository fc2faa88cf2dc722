//! The service beside others: a bare handler, what people write themselves, etcd, and Redis alone. Everything here is a
//! ratio to something else in the same round; the experiments are in `experiments`, what stands beside in `contestants`.
//!
//! `scripts/bench` installs what is needed and runs it.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    missing_docs,
    reason = "a measurement that cannot go on should stop where it stands, and what it is compared with is what people write"
)]

#[allow(dead_code, reason = "tests need more of it than a measurement does")]
#[path = "../../tests/it/support/certificates.rs"]
mod certificates;
mod client;
mod contestants;
mod delay;
mod encryption;
mod etcd_cluster;
mod experiments;
#[path = "../../tests/it/waiters/http1.rs"]
mod http1;
mod machine;
#[allow(dead_code, reason = "tests need more of it than a measurement does")]
#[path = "../../tests/it/support/monitor.rs"]
mod monitor;
mod plot;
#[allow(dead_code, reason = "tests need more of it than a measurement does")]
#[path = "../../tests/it/support/polling.rs"]
mod polling;
#[allow(
    dead_code,
    unused_imports,
    reason = "tests need more of it than a measurement does"
)]
#[path = "../../tests/it/support/redis_server.rs"]
mod redis_server;
#[path = "../../tests/it/support/replicas.rs"]
mod replicas;
mod report;
#[allow(dead_code, reason = "tests need more of it than a measurement does")]
#[path = "../../tests/it/support/sentinels.rs"]
mod sentinels;
mod wrk;

use std::path::{Path, PathBuf};

use experiments::Plan;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
// By this path, replicas and Sentinels know it.
use polling::eventually;
use report::Finding;

/// What is compared with the service has the allocator of the service.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const HELP: &str = "\
Measures the service beside others and prints a table. Takes about 40 minutes.

Usage: scripts/bench [--quick] [--only NAME,NAME] [--write]

  --quick   a few minutes for a first look: too short for figures to be quoted
  --only    some of: throughput cpu_time cycles access traces transports handshakes hand_over locks redis_memory
            waiters commands instructions idle processes sentinel cluster quorum file connections run
  --write   writes the figures and the plots into docs/performance, otherwise into the target directory;
            only at full length, and for everything, or for traces, transports and handshakes alone";
/// What stands around the figures on a page.
const MARKS: [&str; 2] = ["<!-- figures: begin -->\n", "<!-- figures: end -->"];
/// The experiments whose figures stand where the page discusses them, so that they can be measured without the others.
const APART: [&str; 3] = ["traces", "transports", "handshakes"];
/// The page with every figure, and the one with a few of them.
const PAGES: [&str; 2] = ["details.md", "README.md"];
/// Which figures the second page has: of an experiment, the first that begins and ends so.
const HEADLINES: [(&str, &str, &str); 11] = [
    ("throughput", "memory: over bare handler", ""),
    ("throughput", "redis:// over bare handler", ""),
    ("throughput", "redis:// over ten-line handler", ""),
    ("throughput", "redis:// over etcd", ""),
    ("throughput", "redis://: acquires", ""),
    ("throughput", "redis://: CPU of the process", ""),
    ("throughput", "redis://: CPU of Redis", ""),
    ("hand_over", "redis:// over an uncontended", "10000 waiters"),
    ("locks", "redis:// beside", "over 1000"),
    ("redis_memory", "a held", "lock"),
    ("waiters", "redis:// memory", "on 1"),
];
/// What 20,000 waiters take here and in the service.
const DESCRIPTORS: u64 = 65_536;

/// What was asked for.
struct Order {
    plan: Plan,
    only: Option<Vec<String>>,
    is_for_docs: bool,
    into: PathBuf,
}

fn main() {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    arguments.retain(|argument| argument != "--bench");
    let runtime = if arguments.first().is_some_and(|first| first == "serve") {
        tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
    } else {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
    };
    let runtime = runtime.expect("a runtime");
    if let [serve, name, redis] = arguments.as_slice()
        && serve == "serve"
    {
        runtime
            .block_on(contestants::serve(name, redis))
            .expect("it serves");
        return;
    }
    match ordered(&arguments) {
        Some(order) => runtime.block_on(run(order)),
        None => println!("{HELP}"),
    }
}

fn ordered(arguments: &[String]) -> Option<Order> {
    let mut order = Order {
        plan: Plan::FULL,
        only: None,
        is_for_docs: false,
        into: Path::new(env!("CARGO_TARGET_TMPDIR")).join("performance"),
    };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--quick" => order.plan = Plan::QUICK,
            "--write" => order.is_for_docs = true,
            "--only" => {
                let names: Vec<_> = arguments.next()?.split(',').map(str::to_owned).collect();
                let known = |name: &String| experiments::ALL.iter().any(|(known, _)| known == name);
                order.only = Some(names).filter(|names| names.iter().all(known));
                order.only.as_ref()?;
            }
            _ => return None,
        }
    }
    if order.is_for_docs {
        // The table shows one measurement, whole and long enough.
        let is_apart = |name: &String| APART.contains(&name.as_str());
        let may_be_written = match &order.only {
            None => true,
            Some(only) => only.iter().all(is_apart),
        };
        order.into = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/performance");
        return (may_be_written && order.plan == Plan::FULL).then_some(order);
    }
    Some(order)
}

async fn run(order: Order) {
    // Each waiter is a socket here and one in the service. Root may raise the limit, others use what there is.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("the system says");
    let wanted = most.max(DESCRIPTORS);
    if setrlimit(Resource::RLIMIT_NOFILE, wanted, wanted).is_err() {
        setrlimit(Resource::RLIMIT_NOFILE, most, most).expect("up to what is allowed");
    }
    let mut findings = Vec::new();
    for (name, experiment) in experiments::ALL {
        if order
            .only
            .as_ref()
            .is_none_or(|only| only.iter().any(|other| other == name))
        {
            eprintln!("{name}");
            findings.extend(experiment(order.plan).await);
        }
    }
    print!("{}", report::table(&findings));
    let page = order.into.join(PAGES[0]);
    // A measurement of some leaves the table of all as it is.
    if order.only.is_none() || !order.is_for_docs {
        write(&order.into, &findings).expect("a place for the figures");
    }
    for experiment in APART {
        write_apart(&page, experiment, &findings).expect("a place for the figures");
    }
    println!("\nwritten to {}", order.into.display());
}

/// The name of a plot, its title, and which ratios are in it.
type Plot = (&'static str, &'static str, fn(&Finding) -> bool);

const PLOTS: [Plot; 6] = [
    (
        "throughput",
        "Acquires per second, as ratios in the same round",
        |finding| finding.experiment == "throughput" && !finding.figure.contains("etcd"),
    ),
    (
        "etcd",
        "Acquires per second over those of etcd's lock",
        |finding| finding.experiment == "throughput" && finding.figure.contains("etcd"),
    ),
    (
        "growth",
        "Throughput with more locks, as a ratio",
        |finding| finding.experiment == "locks",
    ),
    (
        "connections",
        "With more connections, as ratios",
        |finding| finding.experiment == "connections",
    ),
    (
        "processes",
        "Throughput of several processes, over that of one",
        |finding| finding.experiment == "processes",
    ),
    ("hand_over", "Hand-overs, as ratios of medians", |finding| {
        finding.experiment == "hand_over"
    }),
];

/// Figures, plots, and the parts of the pages that have tables.
fn write(into: &Path, findings: &[Finding]) -> std::io::Result<()> {
    std::fs::create_dir_all(into)?;
    let machine = machine::described();
    let json = report::to_json(&machine, findings);
    std::fs::write(into.join("results.json"), format!("{json:#}\n"))?;
    for (file, title, is_in) in PLOTS {
        let is_shown = |finding: &&Finding| finding.unit.is_empty() && is_in(finding);
        let shown: Vec<_> = findings.iter().filter(is_shown).collect();
        if !shown.is_empty() {
            let plot = plot::bars(title, &shown);
            std::fs::write(into.join(file).with_extension("svg"), plot)?;
        }
    }
    let [all, few] = PAGES.map(|page| into.join(page));
    let is_in_table = |finding: &&Finding| !APART.contains(&finding.experiment);
    let table = report::markdown(findings.iter().filter(is_in_table));
    replace_figures(&all, MARKS, &machine, &table)?;
    let table = report::markdown(headlines(findings));
    replace_figures(&few, MARKS, &machine, &table)
}

/// The figures of one experiment, if it was measured, between marks of its own.
fn write_apart(page: &Path, experiment: &str, findings: &[Finding]) -> std::io::Result<()> {
    let is_of = |finding: &&Finding| finding.experiment == experiment;
    let found: Vec<_> = findings.iter().filter(is_of).collect();
    if found.is_empty() {
        return Ok(());
    }
    let marks = ["begin", "end"].map(|end| format!("<!-- figures of {experiment}: {end} -->\n"));
    let marks = [marks[0].as_str(), &marks[1]];
    replace_figures(page, marks, &machine::described(), &report::markdown(found))
}

/// The figures that the first page shows.
fn headlines(findings: &[Finding]) -> impl Iterator<Item = &Finding> {
    HEADLINES.iter().filter_map(|(experiment, begin, end)| {
        findings.iter().find(|finding| {
            let figure = &finding.figure;
            finding.experiment == *experiment && figure.starts_with(begin) && figure.ends_with(end)
        })
    })
}

/// Puts a table between the marks of a page, below where it was measured. A page without marks stays as it is.
fn replace_figures(
    page: &Path,
    [begin, end]: [&str; 2],
    machine: &serde_json::Value,
    table: &str,
) -> std::io::Result<()> {
    let text = std::fs::read_to_string(page).unwrap_or_default();
    let Some((before, rest)) = text.split_once(begin) else {
        return Ok(());
    };
    let Some((_, after)) = rest.split_once(end) else {
        return Ok(());
    };
    let on = format!(
        "Measured on {}: {} cores of {}, {}; {}; {}; {}.\n\n",
        text_of(&machine["date"]),
        machine["cores"],
        text_of(&machine["processor"]),
        text_of(&machine["kernel"]),
        text_of(&machine["redis"]),
        text_of(&machine["etcd"]),
        text_of(&machine["wrk"]),
    );
    let page_now = format!("{before}{begin}{on}{table}{end}{after}");
    std::fs::write(page, page_now)
}

fn text_of(value: &serde_json::Value) -> &str {
    value.as_str().unwrap_or("unknown")
}

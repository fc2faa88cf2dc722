//! The options of a run, from the command line of `scripts/history`.

use std::time::Duration;

use super::faults::Fault;
use super::resource::Presented;
use super::watched::REPLICAS;
use crate::support::redis_server::Persistence;

/// Where the locks are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Backend {
    Redis,
    /// A cluster of primaries, each with a replica.
    Cluster,
    /// A primary with replicas, which Sentinels watch.
    Sentinel,
    /// A quorum of independent Redis.
    Quorum,
    /// One process, whose locks end with it.
    Memory,
    /// One process, on a directory.
    File,
}

impl Backend {
    const ALL: [Self; 6] = [
        Self::Redis,
        Self::Cluster,
        Self::Sentinel,
        Self::Quorum,
        Self::Memory,
        Self::File,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Cluster => "cluster",
            Self::Sentinel => "sentinel",
            Self::Quorum => "quorum",
            Self::Memory => "memory",
            Self::File => "file",
        }
    }
}

/// The options of a run.
#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) seed: u64,
    pub(super) time: Duration,
    pub(super) faults: Vec<Fault>,
    pub(super) backend: Backend,
    pub(super) processes: usize,
    pub(super) clients: usize,
    /// What Redis keeps on disk; chosen by the seed if `None`.
    pub(super) persistence: Option<Persistence>,
    /// How many replicas have to confirm what is reported: none or all.
    pub(super) wait_replicas: usize,
    pub(super) ttl_max: Duration,
    /// Not on the command line: only a broken run presents others than those that were granted.
    pub(super) presented: Presented,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 1,
            time: Duration::from_secs(60),
            faults: Vec::new(),
            backend: Backend::Redis,
            processes: 3,
            clients: 14,
            persistence: None,
            wait_replicas: 0,
            ttl_max: Duration::from_secs(15),
            presented: Presented::AsGranted,
        }
    }
}

impl Options {
    /// Reads `--name value` pairs.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut options = Self::default();
        let mut words = text.split_whitespace();
        let mut faults = "all";
        while let Some(name) = words.next() {
            let value = words
                .next()
                .ok_or_else(|| format!("{name} needs a value"))?;
            let number = || {
                value
                    .parse::<u64>()
                    .map_err(|_| format!("{name} {value}: no number"))
            };
            let count = || number().map(|number| usize::try_from(number).unwrap_or(1).max(1));
            match name {
                "--seed" => options.seed = number()?,
                "--seconds" => options.time = Duration::from_secs(number()?.max(1)),
                "--faults" => faults = value,
                "--processes" => options.processes = count()?.min(9),
                "--clients" => options.clients = count()?.min(200),
                "--ttl-max" => options.ttl_max = Duration::from_secs(number()?.max(1)),
                "--store" => {
                    let mut all = Backend::ALL.into_iter();
                    let backend = all.find(|backend| backend.name() == value);
                    options.backend =
                        backend.ok_or_else(|| format!("there is no {value} store"))?;
                }
                "--persistence" if value == "always" => {
                    options.persistence = Some(Persistence::AofAlways);
                }
                "--persistence" if value == "none" => {
                    options.persistence = Some(Persistence::Nothing);
                }
                "--wait-replicas" if value == "none" => options.wait_replicas = 0,
                "--wait-replicas" if value == "all" => options.wait_replicas = REPLICAS,
                _ => return Err(format!("{name} {value} is not known")),
            }
        }
        if options.wait_replicas > 0 && options.backend != Backend::Sentinel {
            return Err("--wait-replicas needs --store sentinel".to_owned());
        }
        if matches!(options.backend, Backend::Memory | Backend::File) {
            options.processes = 1;
        }
        options.faults = options.named(faults)?;
        Ok(options)
    }

    /// The faults with these names: one, several with commas, `all` that are applicable, or `none`.
    fn named(&self, names: &str) -> Result<Vec<Fault>, String> {
        let makes_sense = |fault: &Fault| {
            fault.strikes(self.backend) && (self.processes > 1 || *fault != Fault::LoseBoth)
        };
        match names {
            "none" => Ok(Vec::new()),
            "all" => Ok(Fault::ALL.into_iter().filter(makes_sense).collect()),
            names => names
                .split(',')
                .map(|name| {
                    let fault =
                        Fault::named(name).ok_or_else(|| format!("there is no fault {name:?}"))?;
                    let senseless =
                        format!("{name} makes no sense with this store and so many processes");
                    makes_sense(&fault).then_some(fault).ok_or(senseless)
                })
                .collect(),
        }
    }

    /// The command that repeats one round.
    pub(super) fn command(&self, seed: u64, time: Duration) -> String {
        let faults: Vec<_> = self.faults.iter().map(|fault| fault.name()).collect();
        let faults = if faults.is_empty() {
            "none".to_owned()
        } else {
            faults.join(",")
        };
        let store = self.backend.name();
        let persistence = match self.persistence {
            Some(Persistence::AofAlways) => " --persistence always",
            Some(Persistence::AofEverySecond) => " --persistence everysec",
            Some(Persistence::Nothing) => " --persistence none",
            None => "",
        };
        let confirmed = match self.wait_replicas {
            0 => "",
            _ => " --wait-replicas all",
        };
        format!(
            "scripts/history --seed {seed} --seconds {} --faults {faults} --store {store} --processes {} --clients {} --ttl-max {}{persistence}{confirmed}",
            time.as_secs(),
            self.processes,
            self.clients,
            self.ttl_max.as_secs()
        )
    }

    /// What Redis keeps on disk in a round: everything in two of three.
    pub(super) fn persistence(&self, seed: u64) -> Persistence {
        let by_seed = if seed.is_multiple_of(3) {
            Persistence::Nothing
        } else {
            Persistence::AofAlways
        };
        self.persistence.unwrap_or(by_seed)
    }
}

#[test]
fn options_are_read_and_written() {
    let options = Options::parse("--seed 7 --seconds 20 --faults cut,clock --persistence none");
    let options = options.expect("they are fine");
    assert_eq!(options.faults, [Fault::Cut, Fault::Clock]);
    let command = options.command(options.seed, options.time);
    let again = Options::parse(
        command
            .strip_prefix("scripts/history")
            .expect("it begins so"),
    );
    assert_eq!(
        again.expect("they are fine").command(7, options.time),
        command
    );
    for wrong in [
        "--faults tea",
        "--seed x",
        "--store tape",
        "--seed",
        "--store memory --faults cut",
        "--store cluster --wait-replicas all",
    ] {
        assert!(Options::parse(wrong).is_err(), "{wrong}");
    }
    let memory = Options::parse("--store memory").expect("they are fine");
    assert_eq!(
        (memory.faults, memory.processes),
        (vec![Fault::PauseProcess], 1)
    );
    let file = Options::parse("--store file").expect("they are fine");
    assert_eq!((file.faults.len(), file.processes), (3, 1));
    let cluster = Options::parse("--store cluster").expect("they are fine");
    assert_eq!((cluster.faults.len(), cluster.processes), (6, 3));
    let sentinel = "--store sentinel --wait-replicas all";
    let sentinel = Options::parse(sentinel).expect("they are fine");
    assert_eq!((sentinel.faults.len(), sentinel.wait_replicas), (9, 2));
    let quorum = Options::parse("--store quorum").expect("they are fine");
    assert_eq!((quorum.faults.len(), quorum.processes), (18, 3));
}

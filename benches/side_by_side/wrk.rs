//! wrk: what it is told, and what it found. Its scripts are in `wrk/`.

use std::io::Write as _;
use std::process::{Child, Command, Stdio};

use serde::Deserialize;
use tempfile::NamedTempFile;

/// What wrk does.
#[derive(Clone, Copy)]
pub(crate) enum Script {
    Acquire,
    Fill,
    Held,
    Pairs,
    Etcd,
}

impl Script {
    fn text(self) -> &'static str {
        match self {
            Self::Acquire => include_str!("wrk/acquire.lua"),
            Self::Fill => include_str!("wrk/fill.lua"),
            Self::Held => include_str!("wrk/held.lua"),
            Self::Pairs => include_str!("wrk/pairs.lua"),
            Self::Etcd => include_str!("wrk/etcd.lua"),
        }
    }
}

/// What wrk found.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Load {
    requests: f64,
    us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    refused: f64,
    broken: f64,
}

impl Load {
    /// # Panics
    /// A request was refused or broken: what was measured would not be what it seems.
    pub(crate) fn requests(&self) -> f64 {
        assert!(
            self.good() == self.requests,
            "not all answers were good: {self:?}"
        );
        self.requests
    }

    /// Those that were answered as they should be.
    pub(crate) fn good(&self) -> f64 {
        self.requests - self.refused - self.broken
    }

    /// # Panics
    /// As [`Load::requests`].
    pub(crate) fn per_second(&self) -> f64 {
        self.requests() / self.us * 1e6
    }
}

/// A running wrk, with its script.
pub(crate) struct Wrk {
    process: Child,
    _script: NamedTempFile,
}

impl Wrk {
    /// One thread of wrk, which is as much as it needs: it does less for a request than any contestant.
    pub(crate) fn start(
        script: Script,
        url: &str,
        connections: usize,
        seconds: f64,
        argument: &str,
    ) -> Self {
        let mut file = NamedTempFile::new().unwrap();
        write!(
            file,
            "{}\n{}",
            script.text(),
            include_str!("wrk/report.lua")
        )
        .unwrap();
        let process = Command::new("wrk")
            .args([
                "-t1",
                &format!("-c{connections}"),
                &format!("-d{seconds:.0}s"),
            ])
            .arg("-s")
            .arg(file.path())
            .args([url, "--", argument])
            .stdout(Stdio::piped())
            .spawn()
            .expect("wrk is installed (scripts/bench does it)");
        Self {
            process,
            _script: file,
        }
    }

    pub(crate) fn finish(self) -> Load {
        let output = self.process.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let line = text.lines().find_map(|line| line.strip_prefix("RESULT "));
        serde_json::from_str(line.unwrap_or_else(|| panic!("wrk said: {text}"))).unwrap()
    }
}

/// Runs wrk to its end.
pub(crate) fn run(script: Script, url: &str, connections: usize, seconds: f64) -> Load {
    Wrk::start(script, url, connections, seconds, "").finish()
}

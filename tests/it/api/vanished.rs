//! A client that vanishes without closing its connection, in a network namespace that can be taken down.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use crate::support::EFFECT_TIMEOUT;

/// A shell in a network namespace of its own, with only a loopback device.
struct Network {
    shell: Child,
    commands: ChildStdin,
    lines: Receiver<String>,
}

impl Network {
    /// `None` where the system does not permit it.
    fn of_its_own() -> Option<Self> {
        let unshare = |program: &str| {
            let mut command = Command::new("unshare");
            // Everything started in it ends with it.
            command.args(["--user", "--map-root-user", "--net"]);
            command.args(["--pid", "--fork", "--kill-child", program]);
            command
        };
        let is_allowed = unshare("true")
            .status()
            .is_ok_and(|status| status.success());
        if !is_allowed {
            return None;
        }
        let mut shell = unshare("sh")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (tx, lines) = channel();
        let output = BufReader::new(shell.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                // Fails when the test has ended, which is fine.
                let _ = tx.send(line);
            }
        });
        let commands = shell.stdin.take().unwrap();
        Some(Self {
            shell,
            commands,
            lines,
        })
    }

    fn run(&mut self, command: &str) {
        writeln!(self.commands, "{command}").unwrap();
    }

    /// Reads the output of the programs in it, up to a line with these words.
    fn wait_for(&self, words: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(EFFECT_TIMEOUT);
            let line = line.unwrap_or_else(|_| panic!("nobody says {words:?}"));
            if line.contains(words) {
                return line;
            }
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

/// The stream renews its lease for as long as it lives, so a free lock shows that the service detected the lost client.
#[test]
fn a_client_that_vanishes_loses_the_lock_that_its_stream_held() {
    let Some(mut network) = Network::of_its_own() else {
        eprintln!("no network of its own is to be had here; nothing was tested");
        return;
    };
    let url = "127.0.0.1:7625/locks/a";
    let binary = env!("CARGO_BIN_EXE_leasehold");
    network.run("ip link set lo up");
    network.run(&format!("{binary} --log-format json --log-level debug &"));
    network.wait_for("\"listening\"");
    network.run(&format!(
        "curl -sN -X POST -H 'accept: text/event-stream' '{url}?ttl=2s' &"
    ));
    network.wait_for("event: acquired");
    network.run("ip link set lo down");
    network.wait_for("a connection ended with an error");
    network.run("ip link set lo up");
    network.run(&format!(
        "until curl -s {url} | grep -q free; do :; done; echo it is free"
    ));
    network.wait_for("it is free");
}

/// Nothing is sent to it, so only the system can find out.
#[test]
fn a_client_that_vanishes_while_it_waits_leaves_the_queue() {
    let Some(mut network) = Network::of_its_own() else {
        eprintln!("no network of its own is to be had here; nothing was tested");
        return;
    };
    let url = "127.0.0.1:7625/locks/a";
    let binary = env!("CARGO_BIN_EXE_leasehold");
    network.run("ip link set lo up");
    network.run(&format!("{binary} --log-format json --log-level debug &"));
    network.wait_for("\"listening\"");
    network.run(&format!("curl -s -X POST '{url}?ttl=1h'; echo"));
    network.wait_for("\"fencing_token\"");
    network.run(&format!("curl -s -X POST '{url}?wait=50s' &"));
    let until_queue_has = |waiters: usize| {
        format!(
            "until curl -s {url} | grep -q '\"queue_length\":{waiters},'; do :; done; echo now {waiters}"
        )
    };
    network.run(&until_queue_has(1));
    network.wait_for("now 1");
    network.run("ip link set lo down");
    network.wait_for("a connection ended with an error");
    network.run("ip link set lo up");
    network.run(&until_queue_has(0));
    network.wait_for("now 0");
}

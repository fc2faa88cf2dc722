//! A resource that notices when two use it at once, and runs that use it.

use std::io::{ErrorKind, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::mpsc::{Receiver, channel};

use nix::sys::signal::Signal;

use super::{Running, run, state};
use crate::process::Serving;
use crate::support::{EFFECT_TIMEOUT, eventually};

/// Each user keeps a connection for as long as it uses the resource. The system closes it when the process ends, however
/// that happens.
struct Resource {
    port: u16,
    /// For each user in turn, whether another was there.
    overlaps: Receiver<bool>,
}

impl Resource {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (tx, overlaps) = channel();
        std::thread::spawn(move || {
            let mut users = Vec::new();
            for mut user in listener.incoming().map_while(Result::ok) {
                users.retain(is_there);
                user.set_nonblocking(true).unwrap();
                if tx.send(!users.is_empty()).is_err() || user.write_all(b"x").is_err() {
                    return;
                }
                users.push(user);
            }
        });
        Self { port, overlaps }
    }

    /// What bash does to use it from here on.
    fn enter(&self) -> String {
        format!("exec 3<>/dev/tcp/127.0.0.1/{}; read -rn1 -u3", self.port)
    }

    fn next_overlaps(&self) -> bool {
        self.overlaps.recv_timeout(EFFECT_TIMEOUT).unwrap()
    }
}

fn is_there(user: &TcpStream) -> bool {
    let peeked = user.peek(&mut [0]);
    peeked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

/// What the resource says about two that hold the lock together, so that its silence about others means something.
#[test]
fn the_resource_notices_two_users() {
    let (serving, resource) = (Serving::start(&[]), Resource::start());
    let script = format!("{}; read", resource.enter());
    let arguments = ["--shared", "a", "--", "bash", "-c", &script];
    let mut runs = [(); 2].map(|()| {
        let mut command = run(&serving, &arguments);
        Running::of(command.stdin(Stdio::piped()))
    });
    let seen = [(); 2].map(|()| resource.next_overlaps());
    assert_eq!(seen, [false, true]);
    for run in &mut runs {
        drop(run.child.stdin.take());
        run.end();
    }
}

/// The command of the first would use the resource for ever, and ignores SIGTERM.
#[tokio::test]
async fn the_command_of_a_runner_that_is_stopped_or_killed_has_left_when_others_come() {
    const OTHERS: usize = 5;
    for (signal, code) in [(Signal::SIGSTOP, Some(76)), (Signal::SIGKILL, None)] {
        let (serving, resource) = (Serving::start(&[]), Resource::start());
        let enter = resource.enter();
        let script = format!("trap '' TERM; {enter}; while :; do sleep 0.01; done");
        let arguments = ["-t", "1s", "a", "--", "bash", "-c", &script];
        let mut first = Running::start(&serving, &arguments);
        assert!(!resource.next_overlaps());
        let script = format!("{enter}; sleep 0.05");
        let mut others: Vec<_> = (0..OTHERS)
            .map(|_| Running::start(&serving, &["a", "--", "bash", "-c", &script]))
            .collect();
        eventually("all others wait", async || {
            (state(&serving, "a").await["queue_length"] == OTHERS).then_some(())
        })
        .await;
        first.signal(signal);
        for other in &mut others {
            assert!(!resource.next_overlaps(), "{signal}");
            assert_eq!(other.end(), Some(0));
        }
        if signal == Signal::SIGSTOP {
            first.signal(Signal::SIGCONT);
        }
        assert_eq!(first.end(), code);
    }
}

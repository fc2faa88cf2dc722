//! How a process stops: readiness first, then the listener, then the requests in flight; and at once after a second
//! signal.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use leasehold::config::{ListenAddress, ServerConfig};
use leasehold::server::shutdown::announced;
use leasehold::server::{Drained, Server, Workers};
use nix::sys::signal::Signal;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::process::Serving;
use crate::sockets::{config, local};
use crate::support::eventually;
use crate::support::redis_server::{RedisOptions, RedisServer};

async fn status(url: &str) -> u16 {
    reqwest::get(url).await.unwrap().status().as_u16()
}

/// The drain delay is longer than the test.
#[tokio::test]
async fn on_sigterm_readiness_goes_first_while_requests_are_still_served() {
    let mut serving = Serving::start(&["--server-drain-delay", "1h"]);
    let readyz = format!("{}/readyz", serving.url);
    assert_eq!(status(&readyz).await, 200);
    serving.signal(Signal::SIGTERM);
    serving.wait_for_line("stopping; another signal ends the process at once");
    // The line is written just before readiness changes.
    while status(&readyz).await == 200 {}
    assert_eq!(status(&readyz).await, 503);
    assert_eq!(status(&format!("{}/livez", serving.url)).await, 200);
}

#[tokio::test]
async fn on_sigterm_the_process_ends_well() {
    let mut serving = Serving::start(&["--server-drain-delay", "0s"]);
    // Scripts that rotate the logs of other servers send these.
    for meaningless in [Signal::SIGUSR1, Signal::SIGUSR2] {
        serving.signal(meaningless);
        let served = reqwest::get(format!("{}/livez", serving.url)).await;
        assert!(served.is_ok(), "{meaningless} ends nothing");
    }
    serving.signal(Signal::SIGTERM);
    serving.wait_for_line("stopped");
    assert_eq!(serving.wait().code(), Some(0));
    let refused = reqwest::get(format!("{}/livez", serving.url)).await;
    assert!(refused.is_err(), "the listener must be closed");
}

/// The next holder depends on the other nodes for as long as the lease would have lasted.
#[tokio::test]
async fn what_a_silent_node_has_not_followed_is_logged() {
    let mut nodes = Vec::new();
    for _ in 0..3 {
        nodes.push(RedisServer::start(RedisOptions::forgetful()).await);
    }
    let urls = nodes.iter().map(|it| format!("redis://{}", it.address()));
    let urls: Vec<_> = urls.collect();
    let store = format!("quorum:{}", urls.join(","));
    let mut serving = Serving::start(&["--server-drain-delay", "0s", "--store", &store]);
    let lock = format!("{}/locks/a", serving.url);
    eventually("it is granted", async || {
        let granted = reqwest::Client::new().post(&lock).send().await.unwrap();
        (granted.status() == 201).then_some(())
    })
    .await;
    nodes[2].pause();
    let evict = reqwest::Client::new().delete(format!("{lock}?force=true&reason=stuck"));
    assert_eq!(evict.send().await.unwrap().status(), 200);
    serving.signal(Signal::SIGTERM);
    let line = serving.wait_for_line(
        "a node has not followed what was decided without it, and is not asked again: leases that have ended elsewhere \
         may last there as long as their TTL",
    );
    let node = line["node"].as_str().unwrap_or_default();
    assert!(node.contains(&nodes[2].address()), "{line}");
    serving.wait_for_line("stopped");
}

#[test]
fn on_sigint_the_process_stops_as_well() {
    let mut serving = Serving::start(&["--server-drain-delay", "0s"]);
    serving.signal(Signal::SIGINT);
    assert_eq!(serving.wait().code(), Some(0));
}

/// The drain would take an hour. The test repeats the signal until the process ends, because a repeat within the
/// duplicate window is ignored.
#[tokio::test]
async fn a_second_signal_ends_the_process_at_once() {
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGINT, 130)] {
        let mut serving = Serving::start(&["--server-drain-delay", "1h"]);
        serving.signal(Signal::SIGTERM);
        serving.wait_for_line("stopping; another signal ends the process at once");
        while !serving.has_ended() {
            serving.signal(signal);
            tokio::task::yield_now().await;
        }
        assert_eq!(serving.wait().code(), Some(code));
    }
}

/// Both signals have arrived when the process continues, so the time between them does not depend on the test.
#[tokio::test]
async fn two_signals_at_once_are_one_request_to_stop() {
    let mut serving = Serving::start(&["--server-drain-delay", "1h"]);
    for signal in [
        Signal::SIGSTOP,
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGCONT,
    ] {
        serving.signal(signal);
    }
    serving.wait_for_line("stopping; another signal ends the process at once");
    for _ in 0..10 {
        assert_eq!(status(&format!("{}/livez", serving.url)).await, 200);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    while !serving.has_ended() {
        serving.signal(Signal::SIGTERM);
        tokio::task::yield_now().await;
    }
    assert_eq!(serving.wait().code(), Some(143));
}

#[tokio::test]
async fn a_request_under_way_is_answered_after_the_listener_closed() {
    let (entered, finish) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let slow = {
        let (entered, finish) = (Arc::clone(&entered), Arc::clone(&finish));
        move || async move {
            entered.notify_one();
            finish.notified().await;
            "done"
        }
    };
    let server = Server::bind(&config(), local()).unwrap();
    let address = server.local_addr();
    let draining = CancellationToken::new();
    let stop = announced(draining.clone(), Duration::ZERO);
    let running = tokio::spawn(server.run(
        Router::new().route("/slow", get(slow)),
        Workers::here(),
        stop,
    ));
    let request = tokio::spawn(reqwest::get(format!("http://{address}/slow")));
    entered.notified().await;
    draining.cancel();
    // Refused connections show that the listener is closed; until then the system still accepts them.
    while TcpStream::connect(address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    finish.notify_one();
    assert_eq!(
        request.await.unwrap().unwrap().text().await.unwrap(),
        "done"
    );
    assert_eq!(running.await.unwrap(), Drained::Finished);
}

#[tokio::test]
async fn a_request_that_never_ends_is_cut_when_the_time_to_drain_is_over() {
    let entered = Arc::new(Notify::new());
    let stuck = {
        let entered = Arc::clone(&entered);
        move || async move {
            entered.notify_one();
            std::future::pending::<()>().await;
        }
    };
    let config = ServerConfig {
        drain_timeout: Duration::from_millis(50),
        ..config()
    };
    let server = Server::bind(&config, local()).unwrap();
    let (address, open) = (server.local_addr(), server.open_connections());
    let draining = CancellationToken::new();
    let stop = announced(draining.clone(), Duration::ZERO);
    let running = tokio::spawn(server.run(
        Router::new().route("/stuck", get(stuck)),
        Workers::here(),
        stop,
    ));
    let request = tokio::spawn(reqwest::get(format!("http://{address}/stuck")));
    entered.notified().await;
    draining.cancel();
    assert_eq!(running.await.unwrap(), Drained::Cut { connections: 1 });
    assert!(request.await.unwrap().is_err());
    assert_eq!(open.count(), 0);
}

#[tokio::test]
async fn an_idle_connection_does_not_hold_up_the_end() {
    let server = Server::bind(&config(), local()).unwrap();
    let address = server.local_addr();
    let draining = CancellationToken::new();
    let stop = announced(draining.clone(), Duration::ZERO);
    let running = tokio::spawn(server.run(
        Router::new().route("/", get("hello")),
        Workers::here(),
        stop,
    ));
    // The client keeps its connection for the next request, which never comes.
    let client = reqwest::Client::new();
    client
        .get(format!("http://{address}/"))
        .send()
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    draining.cancel();
    assert_eq!(running.await.unwrap(), Drained::Finished);
}

/// As a load balancer opens connections before it needs them.
#[tokio::test]
async fn a_connection_that_has_sent_nothing_does_not_hold_up_the_end_and_is_not_cut() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("leasehold.sock");
    for address in [ListenAddress::Tcp(local()), ListenAddress::Unix(path)] {
        let server = Server::bind(&patient(), address).unwrap();
        let (address, open) = (server.address().clone(), server.open_connections());
        let stop = CancellationToken::new();
        let app = Router::new().route("/", get("hello"));
        let stopped = stop.clone().cancelled_owned();
        let running = tokio::spawn(server.run(app, Workers::here(), stopped));
        let _silent: Box<dyn Send> = match address {
            ListenAddress::Tcp(address) => Box::new(TcpStream::connect(address).await.unwrap()),
            ListenAddress::Unix(path) => Box::new(UnixStream::connect(path).await.unwrap()),
        };
        eventually("it is accepted", async || (open.count() == 1).then_some(())).await;
        stop.cancel();
        assert_eq!(running.await.unwrap(), Drained::Finished);
    }
}

/// A server that waits for a first request for longer than it drains.
pub(crate) fn patient() -> ServerConfig {
    ServerConfig {
        header_read_timeout: Duration::from_secs(3600),
        drain_timeout: Duration::from_secs(5),
        ..config()
    }
}

/// A closed terminal sends SIGHUP to its processes; they must drain as after any other signal.
#[tokio::test]
async fn on_sighup_the_process_drains_and_ends_well() {
    let mut serving = Serving::start(&["--server-drain-delay", "0s"]);
    serving.signal(Signal::SIGHUP);
    serving.wait_for_line("stopped");
    assert_eq!(serving.wait().code(), Some(0));
}

/// `nohup` sets the signal to ignored.
#[tokio::test]
async fn a_sighup_that_is_ignored_stays_ignored() {
    let mut nohup = std::process::Command::new("sh");
    nohup.args(["-c", "trap '' HUP && exec \"$0\" \"$@\""]);
    nohup.arg(env!("CARGO_BIN_EXE_leasehold"));
    let serving = Serving::start_as(nohup, &[]);
    for _ in 0..3 {
        serving.signal(Signal::SIGHUP);
        assert_eq!(status(&format!("{}/readyz", serving.url)).await, 200);
    }
}

//! A second address of one process: what a peer has once for both, and how both end.

use std::convert::Infallible;
use std::future::{Future, pending};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use axum::routing::get;
use leasehold::config::ServerConfig;
use leasehold::server::{Drained, Peer, Server, Workers};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;
use tower::Service;

use super::{config, local};
use crate::support::eventually;

/// Serves the same on both addresses.
fn serve_both(
    (one, two): (&ServerConfig, &ServerConfig),
    app: Router,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> ([SocketAddr; 2], JoinHandle<Drained>) {
    let server = Server::bind(one, local()).unwrap();
    let another = server.bind_another(two, local(), &Workers::here()).unwrap();
    let addresses = [server.local_addr(), another.local_addr()];
    let both = server.run_with(app.clone(), Workers::here(), (another, app), shutdown);
    (addresses, tokio::spawn(both))
}

/// Its limits are where the answer says, and the client keeps its connections.
#[tokio::test]
async fn a_peer_has_one_share_of_each_limit_at_both_and_connections_at_each() {
    let limits = ServerConfig {
        connections_per_peer_max: Some(1),
        ..config()
    };
    let app = Router::new().fallback(async |request: Request| {
        let peer: &Peer = request.extensions().get().expect("the peer is there");
        format!("{:p}", Arc::as_ptr(peer.limits().expect("it is no proxy")))
    });
    let (addresses, _) = serve_both((&limits, &limits), app, pending());
    let client = reqwest::Client::new();
    let mut places = Vec::new();
    for address in addresses {
        let answer = client.get(format!("http://{address}/")).send().await;
        places.push(answer.unwrap().text().await.unwrap());
    }
    assert_eq!(places[0], places[1]);
}

/// With a time of its own, the second address would be waited for too long.
#[tokio::test]
async fn requests_at_both_have_one_time_to_finish() {
    let entered = Arc::new(Semaphore::new(0));
    let stuck = {
        let entered = Arc::clone(&entered);
        move || async move {
            entered.add_permits(1);
            pending::<()>().await;
        }
    };
    let [short, long] = [Duration::from_millis(50), Duration::from_secs(86_400)].map(|time| {
        let drain_timeout = time;
        ServerConfig {
            drain_timeout,
            ..config()
        }
    });
    let (stop, stopped) = oneshot::channel::<()>();
    let app = Router::new().route("/stuck", get(stuck));
    let (addresses, running) = serve_both((&short, &long), app, async {
        let _ = stopped.await;
    });
    for address in addresses {
        tokio::spawn(reqwest::get(format!("http://{address}/stuck")));
    }
    let _both = entered.acquire_many(2).await.unwrap();
    stop.send(()).unwrap();
    let drained = tokio::time::timeout(Duration::from_secs(120), running).await;
    let drained = drained.expect("they end together").unwrap();
    assert_eq!(drained, Drained::Cut { connections: 2 });
}

/// Where connections were accepted, in that order.
type Accepted = Arc<Mutex<Vec<&'static str>>>;

/// Notes each connection that is accepted: it is cloned for it.
struct NotingApp {
    address: &'static str,
    accepted: Accepted,
}

impl Clone for NotingApp {
    fn clone(&self) -> Self {
        self.accepted.lock().unwrap().push(self.address);
        Self {
            address: self.address,
            accepted: Arc::clone(&self.accepted),
        }
    }
}

impl Service<Request> for NotingApp {
    type Response = Response;
    type Error = Infallible;
    type Future = std::future::Pending<Result<Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request) -> Self::Future {
        pending()
    }
}

/// The task that accepts connections at both addresses has to yield before it has accepted all of the crowd. If it began
/// with the same address each time, the other one would be served when the crowd is over.
#[tokio::test]
async fn very_many_connections_to_one_address_do_not_delay_those_to_the_other() {
    const CROWD: usize = 250;
    let server = Server::bind(&config(), local()).unwrap();
    let another = server
        .bind_another(&config(), local(), &Workers::here())
        .unwrap();
    let crowd = (0..CROWD).map(|_| TcpStream::connect(server.local_addr()).unwrap());
    let _crowd: Vec<_> = crowd.collect();
    let _one = TcpStream::connect(another.local_addr()).unwrap();
    let accepted = Accepted::default();
    let app = |address| NotingApp {
        address,
        accepted: Arc::clone(&accepted),
    };
    let both = server.run_with(
        app("crowded"),
        Workers::here(),
        (another, app("other")),
        pending(),
    );
    let running = tokio::spawn(both);
    eventually("all connections are accepted", async || {
        (accepted.lock().unwrap().len() > CROWD).then_some(())
    })
    .await;
    running.abort();
    let accepted = accepted.lock().unwrap();
    let before = accepted.iter().position(|address| *address == "other");
    assert!(before.is_some_and(|before| before < CROWD), "{before:?}");
}

//! A second address of one process: what a peer has once for both, and how both end.

use std::future::{Future, pending};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::routing::get;
use leasehold::config::ServerConfig;
use leasehold::server::{Drained, Peer, Server, Workers};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;

use super::{config, local};

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

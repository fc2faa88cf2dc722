//! The handler that people write first, without limits, store protocol or waiting, for the same attack: what a bystander
//! notices of it is what the machine costs, which the attacker, Redis and the server under attack share.

#![allow(
    clippy::disallowed_methods,
    reason = "it is served as people serve their first handler"
)]

use std::convert::Infallible;
use std::net::SocketAddr;
use std::thread;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::{StreamExt as _, stream};
use redis::aio::MultiplexedConnection;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use super::bystander::LEASE_MS;
use crate::support::redis_server::RedisServer;

/// A server that runs on threads of its own until this is dropped.
pub(super) struct BareHandler {
    pub(super) address: SocketAddr,
    _alive: oneshot::Sender<()>,
}

/// One command in the place of a claim that leaves the queue.
struct Leave(MultiplexedConnection);

impl Drop for Leave {
    fn drop(&mut self) {
        if let Ok(runtime) = Handle::try_current() {
            let redis = self.0.clone();
            runtime.spawn(async move { ask(redis, &["DEL", "bare:place"]).await });
        }
    }
}

impl BareHandler {
    pub(super) async fn start(redis: &RedisServer) -> Self {
        let redis = format!("redis://{}", redis.address());
        let (alive, ended) = oneshot::channel();
        let (listens, address) = oneshot::channel();
        thread::spawn(move || {
            let runtime = Builder::new_multi_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                listens.send(listener.local_addr().unwrap()).unwrap();
                let client = redis::Client::open(redis).unwrap();
                let redis = client.get_multiplexed_async_connection().await.unwrap();
                tokio::select! {
                    served = axum::serve(listener, router(redis)) => served.unwrap(),
                    _ = ended => {}
                }
            });
            runtime.shutdown_background();
        });
        Self {
            address: address.await.unwrap(),
            _alive: alive,
        }
    }
}

fn router(redis: MultiplexedConnection) -> Router {
    let lock = post(acquire).put(renew).delete(release);
    Router::new()
        .route("/livez", get(|| async {}))
        .route("/locks/{name}", lock)
        .with_state(redis)
}

async fn acquire(State(redis): State<MultiplexedConnection>, headers: HeaderMap) -> Response {
    ask(
        redis.clone(),
        &["SET", "bare:lock", "", "NX", "PX", LEASE_MS],
    )
    .await;
    if headers
        .get(header::ACCEPT)
        .is_some_and(|accepted| accepted == "text/event-stream")
    {
        let place = Leave(redis);
        let queued = stream::iter([Ok::<_, Infallible>(
            "event: queued\ndata: {\"position\":1}\n\n",
        )]);
        let waiting = stream::pending().map(move |event| {
            let _kept = &place;
            event
        });
        let events = [(header::CONTENT_TYPE, "text/event-stream")];
        return (events, Body::from_stream(queued.chain(waiting))).into_response();
    }
    (StatusCode::CREATED, Json(json!({"token": "bare"}))).into_response()
}

async fn renew(State(redis): State<MultiplexedConnection>) -> StatusCode {
    ask(redis, &["PEXPIRE", "bare:lock", LEASE_MS]).await;
    StatusCode::OK
}

async fn release(State(redis): State<MultiplexedConnection>) -> StatusCode {
    ask(redis, &["DEL", "bare:lock"]).await;
    StatusCode::NO_CONTENT
}

async fn ask(mut redis: MultiplexedConnection, command: &[&str]) {
    let mut asked = redis::cmd(command[0]);
    asked.arg(&command[1..]);
    asked.exec_async(&mut redis).await.unwrap();
}

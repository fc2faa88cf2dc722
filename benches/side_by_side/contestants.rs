//! The handlers that Leasehold is compared with, each served by a process of its own. How they are started, driven and
//! judged is elsewhere.
//!
//! All of them answer `POST /locks/{name}` with the body `{"ttl":"10s"}` with `201` and a token.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderName, StatusCode};
use axum::response::{AppendHeaders, IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use bb8_redis::RedisConnectionManager;
use bb8_redis::bb8::Pool;
use redis::Script;
use redis::aio::MultiplexedConnection;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::net::TcpListener;
use uuid::Uuid;

/// The least that a lock needs of Redis: whether there is one, the time, and a key that expires.
pub(crate) const LEAST_SCRIPT: &str = "local time = redis.call('TIME') \
    local held = redis.call('GET', KEYS[1]) \
    if held then return held end \
    redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) \
    return time[1] .. time[2]";

/// What a client asks for.
#[derive(Deserialize)]
struct Ask {
    ttl: String,
}

impl Ask {
    fn ttl(&self) -> Result<Duration, StatusCode> {
        humantime::parse_duration(&self.ttl).map_err(|_| StatusCode::BAD_REQUEST)
    }
}

/// The body of Leasehold's answer, field by field.
#[derive(Serialize)]
struct Grant<'a> {
    name: &'a str,
    token: Uuid,
    fencing_token: u64,
    mode: &'static str,
    limit: Option<u32>,
    permits: u32,
    owner: &'static str,
    metadata: Option<Value>,
    hold_count: u16,
    acquired_at: &'static str,
    expires_at: &'static str,
    expires_in_ms: u64,
    ttl_ms: u64,
    waited_ms: u64,
    replayed: bool,
}

/// The ceiling: the same request is read, and an answer of the same length is written. No store, no middleware; what
/// Leasehold would have to find out is a constant here.
async fn bare(Path(name): Path<String>, Json(ask): Json<Ask>) -> Result<Response, StatusCode> {
    let ttl = ask.ttl()?;
    let token = Uuid::new_v4();
    let ttl_ms = u64::try_from(ttl.as_millis()).map_err(|_| StatusCode::BAD_REQUEST)?;
    let grant = Grant {
        name: &name,
        token,
        fencing_token: 1_795_244_170_326_216,
        mode: "exclusive",
        limit: None,
        permits: 1,
        owner: "",
        metadata: None,
        hold_count: 1,
        acquired_at: "2026-11-21T06:56:10.326Z",
        expires_at: "2026-11-21T06:57:10.326Z",
        expires_in_ms: ttl_ms - 1,
        ttl_ms,
        waited_ms: 0,
        replayed: false,
    };
    let headers = AppendHeaders([
        (
            HeaderName::from_static("fencing-token"),
            "1795244170326216".to_owned(),
        ),
        (
            HeaderName::from_static("lock-token"),
            token.hyphenated().to_string(),
        ),
        (
            HeaderName::from_static("location"),
            format!("/locks/{name}"),
        ),
        (
            HeaderName::from_static("x-request-id"),
            "01a1fce4-1c56-7189-8351-8f5dbad066dc".to_owned(),
        ),
        (
            HeaderName::from_static("cache-control"),
            "no-store".to_owned(),
        ),
    ]);
    Ok((StatusCode::CREATED, headers, Json(grant)).into_response())
}

/// The four fields that a client needs.
#[derive(Serialize)]
struct Least<'a> {
    name: &'a str,
    token: Uuid,
    fencing_token: u64,
    ttl_ms: u64,
}

/// The least: JSON is read and four fields are answered. No store, no middleware, no limits.
async fn plain(
    Path(name): Path<String>,
    Json(ask): Json<Ask>,
) -> Result<(StatusCode, Response), StatusCode> {
    least(&name, Uuid::new_v4(), 1_795_244_170_326_216, ask.ttl()?)
}

/// The same, and in between the least script that makes a lock, on one connection that all requests share.
async fn script(
    State(redis): State<(MultiplexedConnection, Arc<Script>)>,
    Path(name): Path<String>,
    Json(ask): Json<Ask>,
) -> Result<(StatusCode, Response), StatusCode> {
    let (mut connection, script) = redis;
    let (ttl, token) = (ask.ttl()?, Uuid::new_v4());
    let mut buffer = Uuid::encode_buffer();
    let mut call = script.key(&name);
    call.arg(&*token.hyphenated().encode_lower(&mut buffer))
        .arg(ttl.as_millis() as u64);
    match call.invoke_async(&mut connection).await {
        Ok(fence) => least(&name, token, fence, ttl),
        Err(_) => Err(StatusCode::SERVICE_UNAVAILABLE),
    }
}

fn least(
    name: &str,
    token: Uuid,
    fencing_token: u64,
    ttl: Duration,
) -> Result<(StatusCode, Response), StatusCode> {
    let ttl_ms = u64::try_from(ttl.as_millis()).map_err(|_| StatusCode::BAD_REQUEST)?;
    let answer = Json(Least {
        name,
        token,
        fencing_token,
        ttl_ms,
    });
    Ok((StatusCode::CREATED, answer.into_response()))
}

/// What people write themselves: a stock pool, and SET NX PX.
async fn ten_lines(
    State(pool): State<Pool<RedisConnectionManager>>,
    Path(name): Path<String>,
    Json(ask): Json<Ask>,
) -> Result<(StatusCode, String), StatusCode> {
    let token = Uuid::new_v4().to_string();
    let mut connection = pool
        .get()
        .await
        .map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
    let mut set = redis::cmd("SET");
    set.arg(&name)
        .arg(&token)
        .arg("NX")
        .arg("PX")
        .arg(ask.ttl()?.as_millis() as u64);
    match set.query_async::<Option<String>>(&mut *connection).await {
        Ok(Some(_)) => Ok((StatusCode::CREATED, token)),
        Ok(None) => Err(StatusCode::LOCKED),
        Err(_) => Err(StatusCode::SERVICE_UNAVAILABLE),
    }
}

/// Serves one of them until the process is killed.
pub(crate) async fn serve(which: &str, redis: &str) -> io::Result<()> {
    let app = match which {
        "bare" => Router::new().route("/locks/{name}", post(bare)),
        "plain" => Router::new().route("/locks/{name}", post(plain)),
        "script" => {
            let client = redis::Client::open(redis).expect("an address");
            let connection = client.get_multiplexed_async_connection().await;
            let script = Arc::new(Script::new(LEAST_SCRIPT));
            Router::new()
                .route("/locks/{name}", post(self::script))
                .with_state((connection.expect("a Redis"), script))
        }
        "ten-lines" => {
            let manager = RedisConnectionManager::new(redis).expect("an address");
            let pool = Pool::builder().build(manager).await.expect("a Redis");
            Router::new()
                .route("/locks/{name}", post(ten_lines))
                .with_state(pool)
        }
        // None to compare with: it takes the traces of the service.
        "collector" => Router::new().route("/v1/traces", post(async |_: Bytes| ())),
        other => panic!("no contestant is called {other}"),
    };
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}", listener.local_addr()?);
    axum::serve(listener, app).await
}

//! The handlers that Leasehold is compared with, each served by a process of its own. How they are started, driven and
//! judged is elsewhere.
//!
//! All of them answer `POST /locks/{name}` with the form `ttl=60s` with `201` and a token.

use std::io;
use std::time::Duration;

use axum::extract::{Form, Path, State};
use axum::http::{HeaderName, StatusCode};
use axum::response::{AppendHeaders, IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use bb8_redis::RedisConnectionManager;
use bb8_redis::bb8::Pool;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::net::TcpListener;
use uuid::Uuid;

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
async fn bare(Path(name): Path<String>, Form(ask): Form<Ask>) -> Result<Response, StatusCode> {
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

/// What people write themselves: a stock pool, and SET NX PX.
async fn ten_lines(
    State(pool): State<Pool<RedisConnectionManager>>,
    Path(name): Path<String>,
    Form(ask): Form<Ask>,
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
        "ten-lines" => {
            let manager = RedisConnectionManager::new(redis).expect("an address");
            let pool = Pool::builder().build(manager).await.expect("a Redis");
            Router::new()
                .route("/locks/{name}", post(ten_lines))
                .with_state(pool)
        }
        other => panic!("no contestant is called {other}"),
    };
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}", listener.local_addr()?);
    axum::serve(listener, app).await
}

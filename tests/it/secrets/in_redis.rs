//! What Redis keeps, logs and shows of requests has no secret: whoever may read it cannot use the locks of others.

use reqwest::{Client, RequestBuilder, Response};

use crate::config::{KEY, OTHER_KEY};
use crate::process::{Serving, leasehold};
use crate::support::monitor::Monitor;
use crate::support::redis_server::{RedisOptions, RedisServer};

const TOKEN: &str = "6f1c2b7e-3a64-4d09-9b5e-0d6f0a7c1e21";
const OTHER_TOKEN: &str = "7a2d3c8f-4b75-4e1a-8c6f-1e7a1b8d2f32";

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// The forms in which a token could be written.
fn forms_of(token: &str) -> [Vec<u8>; 3] {
    let id: uuid::Uuid = token.parse().unwrap();
    let simple = id.simple().to_string();
    [token.into(), simple.into(), id.as_bytes().to_vec()]
}

/// Everything in the log of slow commands, which has all of them.
async fn slow_log(redis: &RedisServer) -> Vec<u8> {
    type Entry = (i64, i64, i64, Vec<Vec<u8>>, Vec<u8>, Vec<u8>);
    let log = redis.command(&["SLOWLOG", "GET", "-1"]).await;
    let log: Vec<Entry> = redis::from_redis_value(log).unwrap();
    log.into_iter().flat_map(|entry| entry.3.concat()).collect()
}

async fn status_of(request: RequestBuilder) -> u16 {
    request.send().await.unwrap().status().as_u16()
}

async fn begun(mut stream: Response) -> Response {
    assert_eq!(stream.status(), 200);
    stream.chunk().await.unwrap();
    stream
}

#[tokio::test]
async fn redis_keeps_logs_and_shows_no_token_and_no_key() {
    let redis = RedisServer::start(RedisOptions::default()).await;
    for (name, value) in [
        ("slowlog-log-slower-than", "0"),
        ("slowlog-max-len", "100000"),
    ] {
        redis.command(&["CONFIG", "SET", name, value]).await;
    }
    let mut monitor = Monitor::start(&redis.address()).await;
    let mut command = leasehold(&[]);
    command.envs([
        ("LEASEHOLD_API_KEY", KEY),
        ("LEASEHOLD_ADMIN_KEY", OTHER_KEY),
    ]);
    let store = format!("redis://{}", redis.address());
    let serving = Serving::start_as(command, &["--store", &store]);
    let client = Client::new();
    let request = |method: &str, path: &str, key: &str, token: &str| {
        let url = format!("{}{path}", serving.url);
        let request = client.request(method.parse().unwrap(), url);
        request.bearer_auth(key).header("lock-token", token)
    };
    let watch = request("GET", "/events", KEY, TOKEN).send().await.unwrap();
    let _watch = begun(watch).await;
    for (method, path, key, token, status) in [
        ("POST", "/locks/ledger?max_hold=1h", KEY, TOKEN, 201),
        ("POST", "/locks/ledger?wait=50ms", KEY, OTHER_TOKEN, 423),
        ("PUT", "/locks/ledger", KEY, TOKEN, 200),
        ("DELETE", "/locks/ledger", KEY, TOKEN, 204),
        ("POST", "/locks/ledger?wait=10s", KEY, OTHER_TOKEN, 201),
        ("DELETE", "/locks/ledger?force=true", OTHER_KEY, TOKEN, 200),
        ("POST", "/locks?names=ledger&names=other", KEY, TOKEN, 409),
    ] {
        let asked = request(method, path, key, token);
        assert_eq!(status_of(asked).await, status, "{method} {path}");
    }

    let shown = monitor.take().await.into_iter();
    let shown: Vec<u8> = shown.flat_map(|command| command.words.concat()).collect();
    let kept = std::fs::read(redis.aof()).unwrap();
    let logged = slow_log(&redis).await;
    let secrets = [TOKEN, OTHER_TOKEN]
        .iter()
        .flat_map(|token| forms_of(token));
    let secrets = secrets.chain([KEY, OTHER_KEY].map(Vec::from));
    let secrets: Vec<_> = secrets.collect();
    for (place, text) in [("MONITOR", shown), ("the file", kept), ("SLOWLOG", logged)] {
        assert!(contains(&text, b"ledger"), "{place} has the requests");
        for secret in &secrets {
            let shown = secret.escape_ascii();
            assert!(!contains(&text, secret), "{shown} in {place}");
        }
    }
}

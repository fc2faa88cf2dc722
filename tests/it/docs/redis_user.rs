//! The Redis user of the documentation: its rules, and what the service may do with them.

use futures_util::future::join;
use leasehold::config::KeyHash;
use redis::Value;
use reqwest::{Client, RequestBuilder, Response};

use crate::config::{KEY, file};
use crate::process::Serving;
use crate::support::redis_server::{RedisOptions, RedisServer};

const REDIS_PAGE: &str = include_str!("../../../docs/how-to/redis.md");
const USERS: &str = include_str!("../../../k8s/overlays/dev/users.acl");

/// The ACL rules of the page's Redis user, beginning with its name.
fn user_of(page: &'static str) -> Vec<&'static str> {
    let line = page
        .lines()
        .find_map(|line| line.strip_prefix("user lease"));
    let words = line.unwrap().split(' ').skip(1);
    words.collect()
}

#[test]
fn the_overlay_gives_redis_users_the_rules_of_the_page() {
    let rules = |page| {
        let words = user_of(page).into_iter();
        words
            .filter(|word| !word.starts_with('>'))
            .collect::<Vec<_>>()
    };
    assert_eq!(rules(USERS), rules(REDIS_PAGE));
    let default_user = USERS.lines().next().unwrap();
    assert!(REDIS_PAGE.contains(default_user), "{default_user}");
}

/// The only principal, whose locks are counted.
fn keys_file() -> String {
    let hash = KeyHash::of(KEY.as_bytes());
    format!(
        "[principals.team]\nkeys = [\"{hash}\"]\n\
         rules = [{{ prefix = \"\", verbs = [\"admin\"] }}]\n\
         quota = {{ locks_max = 3 }}\n"
    )
}

/// A service that uses Redis as the user of the page, and a client of it.
struct Restricted {
    serving: Serving,
    client: Client,
}

impl Restricted {
    async fn on(redis: &RedisServer, keys: &str) -> Self {
        let mut command = vec!["ACL", "SETUSER", "leasehold"];
        let rules = user_of(REDIS_PAGE);
        command.extend(&rules);
        redis.command(&command).await;
        let mut words = rules.iter();
        let password = words.find_map(|rule| rule.strip_prefix('>')).unwrap();
        let store = format!("redis://leasehold:{password}@{}", redis.address());
        Self {
            serving: Serving::start(&["--store", &store, "--auth-keys-file", keys]),
            client: Client::new(),
        }
    }

    /// A request whose path and query string follow its method.
    fn request(&self, request: &str) -> RequestBuilder {
        let (method, path) = request.split_once(' ').unwrap();
        let url = format!("{}{path}", self.serving.url);
        let method = method.parse().unwrap();
        self.client.request(method, url).bearer_auth(KEY)
    }

    /// The answer, which has this status.
    async fn ask(&self, request: &str, token: &str, status: u16) -> Response {
        let request = self.request(request).header("lock-token", token);
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status().as_u16(), status, "{answer:?}");
        answer
    }

    async fn stream(&self, request: &str) -> Response {
        let request = self.request(request).header("accept", "text/event-stream");
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status().as_u16(), 200, "{answer:?}");
        answer
    }
}

/// Reads a stream until it has said this.
async fn says(stream: &mut Response, expected: &str) {
    let mut said = String::new();
    while !said.contains(expected) {
        let chunk = stream.chunk().await.unwrap();
        let chunk = chunk.unwrap_or_else(|| panic!("it ends: {said}"));
        said.push_str(std::str::from_utf8(&chunk).unwrap());
    }
}

const ONE: &str = "6f1c2b7e-3a64-4d09-9b5e-0d6f0a7c1e21";
const OTHER: &str = "7a2d3c8f-4b75-4e1a-8c6f-1e7a1b8d2f32";

/// Runs every operation as the Redis user that the page recommends.
#[tokio::test]
async fn the_user_of_the_page_may_do_all_that_the_service_does() {
    let redis = RedisServer::start(RedisOptions::default()).await;
    let keys = file(&keys_file());
    let service = Restricted::on(&redis, keys.path().to_str().unwrap()).await;
    let mut events = service.stream("GET /events").await;
    for (request, token, status) in [
        (
            "POST /locks/a?max_hold=1h&min_hold=10ms&lock_delay=10ms",
            ONE,
            201,
        ),
        ("POST /locks/a", OTHER, 423),
        ("POST /locks/a?hold_count=2", ONE, 200),
        ("PUT /locks/a", ONE, 200),
        ("GET /locks/a", ONE, 200),
        ("GET /locks", ONE, 200),
        ("DELETE /locks/a?hold_count=1", ONE, 200),
        ("DELETE /locks/a", ONE, 204),
        ("POST /locks/shared?mode=shared&limit=2", ONE, 201),
        ("POST /locks/shared?mode=shared&limit=2", OTHER, 201),
        ("POST /locks/third", ONE, 201),
        // The quota is used up.
        ("POST /locks/fourth", ONE, 429),
        ("DELETE /locks/third", ONE, 204),
        ("PUT /locks/shared", OTHER, 200),
        ("DELETE /locks/shared", ONE, 204),
        ("DELETE /locks/shared", OTHER, 204),
        ("POST /locks?names=b&names=c", ONE, 201),
        ("PUT /locks?names=b&names=c", ONE, 200),
        ("POST /locks/b?wait=50ms", OTHER, 423),
        ("DELETE /locks/b", OTHER, 204),
        ("DELETE /locks?names=b&names=c", ONE, 204),
        ("POST /locks/evicted", ONE, 201),
        ("DELETE /locks/evicted?force=true", ONE, 200),
        ("POST /locks/waited-for", ONE, 201),
    ] {
        service.ask(request, token, status).await;
    }
    let waiting = service.ask("POST /locks/waited-for?wait=10s", OTHER, 201);
    let releasing = async {
        says(&mut events, "event: queued\ndata: {\"name\":\"waited-for\"").await;
        service.ask("DELETE /locks/waited-for", ONE, 204).await;
    };
    join(waiting, releasing).await;
    let mut stream = service.stream("POST /locks/held").await;
    says(&mut stream, "event: acquired").await;
    drop(stream);
    says(&mut events, "event: released\ndata: {\"name\":\"held\"").await;

    // It has commands that scripts called, too.
    let denied = redis.command(&["ACL", "LOG"]).await;
    assert_eq!(denied, Value::Array(Vec::new()));
}

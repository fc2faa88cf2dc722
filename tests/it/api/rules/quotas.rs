//! The quotas of principals: what is refused beyond them, and what never is.

mod locks;
mod scrapes;

use std::num::NonZeroU32;

use axum::http::HeaderMap;
use leasehold::config::RequestRate;
use leasehold::http::{Access, Failures};

use super::{api_with, by, install, ring};
use crate::api::support::{Answer, Api, Call, call, delete, get, post, put};
use crate::support::eventually;

/// More requests than any machine handles within the second in which the bucket gets one back.
const FLOOD: usize = 2_000;

/// Two principals that may do everything, each with this quota. Each has its name as its key.
fn file(quota: &str) -> String {
    let principal = |name: &str| {
        format!(
            "[principals.{name}]\nkeys = [\"KEY\"]\nrules = [{{ prefix = \"\", verbs = [\"admin\"] }}]\n"
        )
    };
    format!(
        "[quota]\n{quota}\n{}{}",
        principal("greedy"),
        principal("quiet")
    )
}

async fn api(quota: &str) -> Api {
    api_with(&ring(&file(quota))).await
}

fn greedy(request: Call) -> Call {
    by("greedy", request)
}

/// What came of requests that were sent until one was refused.
struct Flood {
    /// The headers of the others.
    answered: Vec<HeaderMap>,
    refusal: Answer,
}

/// Sends requests until one is refused. Leaves the bodies of the others unread, because a stream has no end.
async fn flood(api: &Api, request: impl Fn() -> Call) -> Flood {
    let mut answered = Vec::new();
    for _ in 0..FLOOD {
        let response = api.open(greedy(request())).await;
        if response.status() == 429 {
            let refusal = Answer::of(response).await;
            return Flood { answered, refusal };
        }
        answered.push(response.headers().clone());
    }
    panic!("none of {FLOOD} requests was refused");
}

async fn counted(api: &Api, limit: &str) -> f64 {
    let metrics = api.send(by("quiet", get("/metrics"))).await;
    let series = format!("leasehold_refused_total{{limit=\"{limit}\"}} ");
    let text = metrics.text();
    let line = text.lines().find_map(|line| line.strip_prefix(&series));
    line.expect(limit).parse().expect("a number")
}

#[tokio::test]
async fn beyond_its_burst_a_principal_is_told_when_to_try_again() {
    let api = api("requests_per_second = 1\nrequests_burst = 5").await;
    let Flood {
        answered,
        refusal: last,
    } = flood(&api, || get("/locks/a")).await;
    assert!(answered.len() >= 5, "{} were its burst", answered.len());
    assert_eq!(answered[0]["ratelimit-policy"], "\"requests\";q=5;w=5");
    assert_eq!(answered[0]["ratelimit"], "\"requests\";r=4;t=1");
    assert_eq!(last.refusal(), (429, "quota_exceeded".to_owned()));
    assert_eq!(last.json()["quota"], "requests_per_second");
    assert_eq!(last.json()["outcome"], "nothing_done");
    assert!(
        last.detail()
            .contains("greedy has used up its requests: 5 at once, and 1 per second")
    );
    assert_eq!(last.header("retry-after"), "1");
    assert_eq!(last.header("ratelimit-policy"), "\"requests\";q=5;w=5");
    assert_eq!(last.header("ratelimit"), "\"requests\";r=0;t=5");
    assert_eq!(counted(&api, "request_rate_per_principal").await, 1.0);
    // The promise is kept: after that time there is one again.
    eventually("a request is answered again", async || {
        let answer = api.send(greedy(get("/locks/a"))).await;
        (answer.status == 200).then_some(())
    })
    .await;
}

/// All ways of acquiring and reading count: one that does not would be the one of an attacker.
#[tokio::test]
async fn every_request_but_renewals_and_releases_counts() {
    let api = api("requests_per_second = 1").await;
    flood(&api, || post("/locks/a")).await;
    let terraform = r#"{"ID":"6f1c3b0e-8f0a-4f57-9c55-0d5d3f1f4a1b"}"#;
    for (what, request) in [
        ("POST", (|| post("/locks/a")) as fn() -> Call),
        ("several", || post("/locks").json(r#"{"names":["a","b"]}"#)),
        ("stream", || {
            post("/locks/a").header("accept", "text/event-stream")
        }),
        ("GET", || get("/locks/a")),
        ("list", || get("/locks")),
        ("events", || get("/events")),
        ("metrics", || get("/metrics")),
    ] {
        let refusal = flood(&api, request).await.refusal;
        assert_eq!(refusal.code(), "quota_exceeded", "{what}");
    }
    let refusal = flood(&api, || post("/terraform/t").body(terraform))
        .await
        .refusal;
    assert_eq!(refusal.code(), "quota_exceeded");
}

#[tokio::test]
async fn a_principal_without_requests_left_keeps_what_it_holds_and_gives_it_back() {
    let api = api("requests_per_second = 1").await;
    let held = api.send(greedy(post("/locks/held?ttl=1h"))).await;
    assert_eq!(held.status, 201, "{}", held.text());
    let token = held.header("lock-token");
    flood(&api, || post("/locks/other")).await;
    for _ in 0..20 {
        let renewed = api.send(greedy(put("/locks/held").token(token))).await;
        assert_eq!(renewed.status, 200, "{}", renewed.text());
        assert!(!renewed.headers.contains_key("ratelimit"));
    }
    for _ in 0..20 {
        let released = api.send(greedy(delete("/locks/held").token(token))).await;
        assert_eq!(released.status, 204, "{}", released.text());
    }
}

#[tokio::test]
async fn a_principal_that_floods_the_service_costs_another_one_no_request() {
    let api = api("requests_per_second = 20\nrequests_burst = 40").await;
    let mut refused = 0_u32;
    for round in 0..10 {
        for _ in 0..30 {
            let flooding = api.send(greedy(post("/locks/contended"))).await;
            refused += u32::from(flooding.status == 429);
        }
        let path = format!("/locks/quiet/{round}");
        let quiet = api.send(by("quiet", post(&path))).await;
        assert_eq!(quiet.status, 201, "{}", quiet.text());
    }
    let counted = counted(&api, "request_rate_per_principal").await;
    assert_eq!(counted, f64::from(refused));
    assert!(refused > 0, "nothing was refused");
}

#[tokio::test]
async fn a_change_of_the_file_fills_no_bucket_but_that_of_a_changed_quota() {
    let text = file("requests_per_second = 1\nrequests_burst = 100");
    let ring = ring(&text);
    let api = api_with(&ring).await;
    flood(&api, || get("/locks/a")).await;
    // The bucket gets one back each second, so a few more answers are no sign of a full one.
    let with_another = text.replace("verbs = [\"admin\"]", "verbs = [\"read\", \"metrics\"]");
    assert_ne!(with_another, text);
    install(&ring, &with_another);
    let few = flood(&api, || get("/locks/a")).await.answered.len();
    assert!(few < 50, "{few} were answered");
    install(
        &ring,
        &text.replace("burst = 100", "burst = 100\nwaiters_max = 7"),
    );
    let few = flood(&api, || get("/locks/a")).await.answered.len();
    assert!(
        few < 50,
        "{few} were answered after a change of another field"
    );
    install(&ring, &text.replace("burst = 100", "burst = 200"));
    let many = flood(&api, || get("/locks/a")).await.answered.len();
    assert!(many >= 200, "{many} were answered");
}

#[tokio::test]
async fn what_a_principal_asks_for_may_be_as_large_as_its_quota_permits() {
    let api = api("ttl_max = \"10s\"\nname_bytes_max = 8\nmetadata_bytes_max = 16").await;
    let field = async |request: Call, code: &str, words: &str| {
        let answer = api.send(greedy(request)).await;
        assert_eq!(answer.refusal(), (400, code.to_owned()), "{words}");
        assert!(answer.detail().contains(words), "{}", answer.detail());
    };
    let out_of_range = "11s is out of range; use 100ms to 10s";
    field(post("/locks/a?ttl=11s"), "invalid_field", out_of_range).await;
    let min_hold = "min_hold: 11s is out of range";
    field(post("/locks/a?min_hold=11s"), "invalid_field", min_hold).await;
    let lock_delay = "lock_delay: 11s is out of range; use 0s to 10s";
    field(post("/locks/a?lock_delay=11s"), "invalid_field", lock_delay).await;
    let name = "too/long9 has 9 bytes; the principal greedy may use names of at most 8";
    field(post("/locks/too/long9"), "invalid_name", name).await;
    let several = post("/locks").json(r#"{"names":["a","too/long9"]}"#);
    field(several, "invalid_name", name).await;
    let metadata = post("/locks/a").json(r#"{"metadata":{"a":"0123456789"}}"#);
    let words = "18 bytes are too many; the principal greedy may send at most 16";
    field(metadata, "invalid_field", words).await;

    let held = api.send(greedy(post("/locks/8/bytes8"))).await;
    assert_eq!(held.status, 201, "{}", held.text());
    assert_eq!(held.json()["ttl_ms"], 10_000, "the default is cut to it");
    let metadata = post("/locks/b").json(r#"{"metadata":{"a":"01234567"},"ttl":"10s"}"#);
    assert_eq!(api.send(greedy(metadata)).await.status, 201);
}

/// A quota may become smaller while locks are held.
#[tokio::test]
async fn a_lock_whose_name_and_ttl_are_longer_than_permitted_can_be_kept_and_released() {
    let ring = ring(&file(""));
    let api = api_with(&ring).await;
    let held = api.send(greedy(post("/locks/a/long/name?ttl=20s"))).await;
    assert_eq!(held.status, 201, "{}", held.text());
    install(&ring, &file("name_bytes_max = 4\nttl_max = \"10s\""));
    let token = held.header("lock-token");
    let renewed = api
        .send(greedy(put("/locks/a/long/name").token(token)))
        .await;
    assert_eq!(renewed.status, 200, "{}", renewed.text());
    let renewed = api
        .send(greedy(put("/locks/a/long/name?ttl=20s").token(token)))
        .await;
    assert_eq!(renewed.status, 200, "{}", renewed.text());
    assert_eq!(renewed.json()["ttl_ms"], 10_000, "it is cut to the quota");
    let never = api
        .send(greedy(put("/locks/a/long/name?ttl=1000d").token(token)))
        .await;
    assert_eq!(never.code(), "invalid_field", "the service has bounds too");
    let released = api
        .send(greedy(delete("/locks/a/long/name").token(token)))
        .await;
    assert_eq!(released.status, 204, "{}", released.text());
}

/// Both of its addresses may be the same, with the TTL of the lock.
#[tokio::test]
async fn terraform_unlocks_though_the_ttl_in_the_address_is_no_longer_permitted() {
    let ring = ring(&file(""));
    let api = api_with(&ring).await;
    let info = r#"{"ID":"8d2ba5c0-5f8e-4f0a-9f4f-4d7f3ac4f6a1"}"#;
    let run = |method| call(method, "/terraform/network?ttl=20s").json(info);
    let locked = api.send(greedy(run("LOCK"))).await;
    assert_eq!(locked.status, 200, "{}", locked.text());
    install(&ring, &file("ttl_max = \"10s\""));
    let unlocked = api.send(greedy(run("UNLOCK"))).await;
    assert_eq!(unlocked.status, 200, "{}", unlocked.text());
    let refused = api.send(greedy(run("LOCK"))).await;
    assert_eq!(refused.status, 400, "{}", refused.text());
}

#[tokio::test]
async fn a_principal_has_no_more_waiters_than_its_quota_permits() {
    let api = api("waiters_max = 2").await;
    let held = api.send(by("quiet", post("/locks/a?ttl=1h"))).await;
    let begin = |path: &'static str| api.begin(greedy(post(path)));
    let waiting = [begin("/locks/a?wait=30s"), begin("/locks/a?wait=30s")];
    has_waiters(&api, 2).await;
    for one_too_many in [
        post("/locks/a?wait=30s"),
        post("/locks/a").header("accept", "text/event-stream"),
    ] {
        let refused = api.send(greedy(one_too_many)).await;
        assert_eq!(refused.refusal(), (429, "quota_exceeded".to_owned()));
        assert_eq!(refused.json()["quota"], "waiters_max");
        assert_eq!(refused.header("retry-after"), "1");
    }
    assert_eq!(counted(&api, "waiters_per_principal").await, 2.0);
    let free = api.send(greedy(post("/locks/free?wait=30s"))).await;
    assert_eq!(free.status, 201, "it is tried once without waiting");
    let other = api.begin(by("quiet", post("/locks/a?wait=30s")));
    has_waiters(&api, 3).await;

    let release = delete("/locks/a").token(held.header("lock-token"));
    assert_eq!(api.send(by("quiet", release)).await.status, 204);
    // Whoever holds the lock has left its place, and another claim may take it.
    eventually("there is a place again", async || {
        let answer = api.send(greedy(post("/locks/a?wait=1ms"))).await;
        (answer.status != 429).then_some(())
    })
    .await;
    for task in waiting.into_iter().chain([other]) {
        task.abort();
    }
}

/// Whoever sends them: there may be no keys at all.
#[tokio::test]
async fn all_clients_together_send_no_more_requests_than_the_process_permits() {
    let number = |number| NonZeroU32::new(number).expect("not zero");
    let rate = RequestRate {
        per_second: number(1),
        burst: number(5),
    };
    let open = Api::with(|settings| settings.requests = Some(rate)).await;
    let held = open.send(post("/locks/held?ttl=1h")).await;
    assert_eq!(held.status, 201, "{}", held.text());
    assert_eq!(held.header("ratelimit-policy"), "\"all\";q=5;w=5");
    assert_eq!(held.header("ratelimit"), "\"all\";r=4;t=1");
    let mut refused = None;
    for _ in 0..FLOOD {
        let answer = open.send(get("/locks/a")).await;
        if answer.status == 429 {
            refused = Some(answer);
            break;
        }
    }
    let refused = refused.expect("there were more requests than the process permits");
    assert_eq!(refused.code(), "quota_exceeded");
    assert_eq!(refused.json()["quota"], "server.requests_per_second");
    assert_eq!(refused.header("retry-after"), "1");
    assert_eq!(refused.header("ratelimit"), "\"all\";r=0;t=5");
    let token = held.header("lock-token");
    for _ in 0..20 {
        assert_eq!(open.send(put("/locks/held").token(token)).await.status, 200);
    }
    assert_eq!(
        open.send(delete("/locks/held").token(token)).await.status,
        204
    );

    // The quotas of principals count beside it.
    let ring = ring(&file("requests_per_second = 1000"));
    let api = Api::with(|settings| {
        settings.access = Access::Keys(ring, Failures::new(20));
        settings.requests = Some(rate);
    })
    .await;
    let first = api.send(greedy(get("/locks/a"))).await;
    let policies = "\"requests\";q=1000;w=1, \"all\";q=5;w=5";
    assert_eq!(first.header("ratelimit-policy"), policies);
    let flood = flood(&api, || get("/locks/a")).await;
    assert_eq!(flood.refusal.json()["quota"], "server.requests_per_second");
    assert_eq!(flood.refusal.header("ratelimit-policy"), policies);
}

/// A client whose connection has died repeats its request before the process notices.
#[tokio::test]
async fn a_repeated_request_of_a_waiting_claim_has_the_place_that_the_claim_has() {
    const TOKEN: &str = "01890a5d-ac96-774b-bcce-b302099a8057";
    let api = api("waiters_max = 1").await;
    api.send(by("quiet", post("/locks/a?ttl=1h"))).await;
    let first = api.begin(greedy(post("/locks/a?wait=1m").token(TOKEN)));
    has_waiters(&api, 1).await;
    let repeated = [(); 4].map(|()| api.begin(greedy(post("/locks/a?wait=100ms").token(TOKEN))));
    for request in repeated {
        let answer = request.await.expect("it does not panic");
        assert_eq!(answer.status, 423, "{}", answer.text());
    }
    let other = api.send(greedy(post("/locks/a?wait=100ms"))).await;
    assert_eq!(other.refusal(), (429, "quota_exceeded".to_owned()));
    first.abort();
}

async fn has_waiters(api: &Api, count: u64) {
    eventually("the claims wait", async || {
        let lock = api.send(by("quiet", get("/locks/a"))).await.json();
        (lock["queue_length"] == count).then_some(())
    })
    .await;
}

//! Cross-site requests that a web page makes a browser send to a service without keys, and the security headers of our
//! own pages.

use leasehold::http::{Access, Failures, KeyRing, KnownHosts, Role};

use super::support::{Api, Call, call, delete, get, post};

/// A service on 127.0.0.1, with one more host name.
async fn on_loopback() -> Api {
    let hosts = KnownHosts::new(
        ([127, 0, 0, 1], 7625).into(),
        vec!["locks.internal".to_owned()],
    );
    Api::with(|settings| settings.access = Access::Open(hosts)).await
}

/// A service on every address, with auth = "none".
async fn open_to_all() -> Api {
    let hosts = KnownHosts::new(([0, 0, 0, 0], 7625).into(), Vec::new());
    Api::with(|settings| settings.access = Access::Open(hosts)).await
}

/// The headers that mark a request as cross-site.
fn marks() -> [fn(Call) -> Call; 5] {
    [
        |request| request.header("sec-fetch-site", "cross-site"),
        |request| request.header("sec-fetch-site", "same-site"),
        |request| request.header("origin", "http://evil.example"),
        |request| request.header("origin", "null"),
        |request| request.header("origin", "http://localhost:8080"),
    ]
}

fn local(request: Call) -> Call {
    request.header("host", "localhost:7625")
}

#[tokio::test]
async fn a_page_of_another_site_neither_changes_nor_sees_locks() {
    for first in [on_loopback().await, open_to_all().await] {
        let token = first.token_of("/locks/a").await;
        let both = [&first, &first.for_operators()];
        for (mark, api) in marks()
            .into_iter()
            .flat_map(|mark| both.map(|api| (mark, api)))
        {
            for request in [
                post("/locks/b").header("content-type", "text/plain"),
                post("/locks").form("names=b&names=c"),
                call("PUT", "/locks/a").token(&token),
                delete("/locks/a").token(&token),
                delete("/locks/a?force=true"),
                get("/locks/a"),
                get("/locks"),
                get("/events"),
                get("/metrics"),
                call("OPTIONS", "/locks/a"),
                post("/livez"),
                get("/nothing"),
                get("/locks/a").header("sec-fetch-mode", "navigate"),
            ] {
                let answer = api.send(mark(local(request))).await;
                assert_eq!(answer.refusal(), (403, "forbidden".to_owned()));
                assert!(answer.detail().contains("another site"));
            }
        }
        let state = first.send(get("/locks/a")).await.json();
        assert_eq!(state["state"], "held");
        let state = first.send(get("/locks/b")).await.json();
        assert_eq!(state["state"], "free");
    }
}

#[tokio::test]
async fn a_link_on_another_site_leads_to_pages_and_probes() {
    let api = on_loopback().await;
    for path in [
        "/",
        "/livez",
        "/readyz",
        "/docs/",
        "/ui",
        "/problems/lock_held",
    ] {
        for mark in marks() {
            let request = mark(local(get(path))).header("sec-fetch-mode", "navigate");
            assert_eq!(api.send(request).await.status, 200, "{path}");
        }
    }
    let operators = api.for_operators();
    for (path, mark) in ["/livez", "/readyz", "/ui"]
        .into_iter()
        .flat_map(|path| marks().map(|mark| (path, mark)))
    {
        let request = mark(local(get(path))).header("sec-fetch-mode", "navigate");
        assert_eq!(operators.send(request).await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn our_own_pages_and_the_address_bar_may_do_everything() {
    let api = on_loopback().await;
    for (number, request) in [
        post("/locks/0").header("sec-fetch-site", "same-origin"),
        post("/locks/1").header("sec-fetch-site", "none"),
        post("/locks/2").header("origin", "http://localhost:7625"),
        post("/locks/3")
            .header("origin", "http://localhost:7625")
            .header("sec-fetch-site", "same-origin"),
        post("/locks/4"),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(api.send(local(request)).await.status, 201, "{number}");
    }
}

#[tokio::test]
async fn a_name_that_a_page_made_up_for_our_address_reaches_nothing() {
    let first = on_loopback().await;
    first.token_of("/locks/a").await;
    for api in [&first, &first.for_operators()] {
        for path in ["/locks/a?force=true", "/livez", "/", "/nothing"] {
            for host in [
                "evil.example",
                "evil.example:7625",
                "127.0.0.1.evil.example",
                "",
            ] {
                let request = delete(path).header("host", host);
                let request = request.header("sec-fetch-site", "same-origin");
                let answer = api.send(request).await;
                assert_eq!(answer.refusal(), (403, "forbidden".to_owned()), "{host}");
                assert!(answer.detail().contains("LEASEHOLD_SERVER_HOSTS"));
            }
        }
        let both = delete("/locks/a?force=true").header("host", "localhost");
        let both = both.header("host", "evil.example");
        assert_eq!(api.send(both).await.status, 403);
        let absolute = delete("http://evil.example/locks/a?force=true").header("host", "localhost");
        assert_eq!(api.send(absolute).await.status, 403);
    }
}

#[tokio::test]
async fn a_loopback_listener_accepts_its_usual_names() {
    let api = on_loopback().await;
    for host in [
        "localhost",
        "localhost:7625",
        "127.0.0.1:7625",
        "[::1]:7625",
        "app.localhost:7625",
        "locks.internal",
        "192.0.2.7:80",
    ] {
        for api in [&api, &api.for_operators()] {
            let answer = api.send(get("/locks").header("host", host)).await;
            assert_eq!(answer.status, 200, "{host}");
        }
    }
    assert_eq!(api.send(get("/locks")).await.status, 200, "HTTP/1.0");
}

/// Such a service cannot know its host names unless they are configured.
#[tokio::test]
async fn a_service_for_other_machines_accepts_any_name_until_names_are_configured() {
    let any = open_to_all().await;
    let named = Api::with(|settings| {
        let names = vec!["locks.example".to_owned()];
        settings.access = Access::Open(KnownHosts::new(([0, 0, 0, 0], 7625).into(), names));
    })
    .await;
    for (host, status) in [("locks.example", 200), ("elsewhere.example", 403)] {
        let request = || get("/locks").header("host", host);
        for (any, named) in [
            (&any, &named),
            (&any.for_operators(), &named.for_operators()),
        ] {
            assert_eq!(any.send(request()).await.status, 200, "{host}");
            assert_eq!(named.send(request()).await.status, status, "{host}");
        }
    }
}

/// Other machines may reach one of the addresses and not the other one.
#[tokio::test]
async fn each_address_accepts_the_names_that_it_can_know() {
    for (listen, admin_is_local, admin) in [
        ([127, 0, 0, 1], true, 403),
        ([127, 0, 0, 1], false, 200),
        ([0, 0, 0, 0], true, 403),
        ([0, 0, 0, 0], false, 200),
    ] {
        let hosts = KnownHosts::new((listen, 7625).into(), Vec::new());
        let hosts = hosts.with_admin(admin_is_local);
        let api = Api::with(|settings| settings.access = Access::Open(hosts)).await;
        let first = if listen[0] == 127 { 403 } else { 200 };
        for (api, status) in [(&api, first), (&api.for_operators(), admin)] {
            for request in [
                get("/locks"),
                get("/locks/a"),
                delete("/locks/a?force=true"),
                get("/ui"),
                get("/livez"),
                get("/metrics"),
            ] {
                let request = request.header("host", "evil.example");
                let answer = api.send(request).await;
                assert_eq!(answer.status, status, "{listen:?} {admin_is_local}");
            }
        }
    }
}

/// Browsers never add a key by themselves.
#[tokio::test]
async fn with_a_key_cross_site_requests_are_like_any_other() {
    let api = Api::with(|settings| {
        let ring = KeyRing::new([(Role::Client, "s3cret")]);
        settings.access = Access::Keys(ring, Failures::new(60));
    })
    .await;
    let request = post("/locks/a")
        .header("host", "locks.example")
        .header("origin", "https://dashboard.example")
        .header("sec-fetch-site", "cross-site");
    assert_eq!(api.send(request).await.status, 401);
    let request = post("/locks/a")
        .header("authorization", "Bearer s3cret")
        .header("host", "locks.example")
        .header("sec-fetch-site", "cross-site");
    assert_eq!(api.send(request).await.status, 201);
}

#[tokio::test]
async fn no_response_is_sniffed() {
    let api = Api::new().await;
    for request in [
        get("/locks/a"),
        post("/locks/a"),
        get("/livez"),
        get("/nothing"),
        get("/metrics"),
        get("/docs"),
        get("/docs/swagger-ui.css"),
        call("HEAD", "/events"),
        get("/problems/lock_held").header("accept", "text/html"),
    ] {
        let answer = api.send(request).await;
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
    }
}

#[tokio::test]
async fn our_pages_load_nothing_from_elsewhere_and_are_shown_in_no_frame() {
    let api = Api::new().await;
    let operators = api.for_operators();
    for (api, page, scripts) in [
        (&api, get("/docs/"), "script-src 'self'"),
        (&api, get("/ui"), "script-src 'self'"),
        (&operators, get("/ui"), "script-src 'self'"),
        (
            &api,
            get("/problems/lock_held").header("accept", "text/html"),
            "default-src 'none'",
        ),
    ] {
        let answer = api.send(page).await;
        assert!(answer.header("content-type").starts_with("text/html"));
        let policy = answer.header("content-security-policy");
        for directive in ["default-src 'none'", "frame-ancestors 'none'", scripts] {
            assert!(policy.contains(directive), "{policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(answer.header("referrer-policy"), "no-referrer");
    }
}

//! What clients can make the libraries below log.

use super::ask;
use crate::process::Serving;
use crate::support::http2::Http2;

/// Each of them resets more streams than a connection may.
const CONNECTIONS: usize = 5;
const RESETS: usize = 200;

/// How many lines h2 logs of such connections.
async fn lines_of_h2(arguments: &[&str]) -> usize {
    let mut serving = Serving::start(arguments);
    let address = serving.address();
    for _ in 0..CONNECTIONS {
        let mut client = Http2::open(address, 65_535).await.unwrap();
        client.ask_and_reset(RESETS).await.unwrap();
        while client.next().await.is_ok() {}
    }
    // Its line comes after those of the others.
    ask(address, "GET", "/nowhere", "").await.unwrap();
    let mut of_h2 = 0;
    loop {
        let line = serving.next_line();
        if line["message"] == "The request was refused." {
            return of_h2;
        }
        of_h2 += usize::from(line["target"].as_str().unwrap().starts_with("h2"));
    }
}

/// It once had hundreds of lines in a second, at the level that is the default.
#[tokio::test]
async fn clients_cannot_make_libraries_warn_unless_the_operator_asks_for_it() {
    assert_eq!(lines_of_h2(&[]).await, 0);
    assert_eq!(
        lines_of_h2(&["--log-level", "warn,leasehold=info"]).await,
        0
    );
    let asked_for = lines_of_h2(&["--log-level", "info,h2=warn"]).await;
    assert!(asked_for >= CONNECTIONS, "{asked_for}");
}

//! A collector that is reached over https.

use super::collector::Collector;
use super::{ACQUIRE, post};
use crate::process::Serving;
use crate::support::certificates::Authority;
use crate::support::tls_front::TlsFront;

/// A service that sends spans to a collector whose certificate is of one authority, and that trusts only another one, or
/// the same.
fn serve_trusting(
    collector: &Collector,
    of_collector: &Authority,
    trusted: &Authority,
) -> (Serving, TlsFront) {
    let address = collector.url.trim_start_matches("http://").parse();
    let front = TlsFront::start(address.unwrap(), &of_collector.files_for("localhost"));
    let serving = Serving::start(&[
        "--traces-endpoint",
        &format!("https://localhost:{}", front.port),
        "--traces-ca-file",
        &trusted.file(),
    ]);
    (serving, front)
}

#[tokio::test]
async fn a_collector_of_an_authority_that_is_named_gets_spans() {
    let collector = Collector::start().await;
    let authority = Authority::new();
    let (serving, front) = serve_trusting(&collector, &authority, &authority);
    post(&serving, "/locks/a").await;
    collector.span(ACQUIRE).await;
    let (headers, _) = collector.received().remove(0);
    assert_eq!(headers["host"], format!("localhost:{}", front.port));
}

/// The flags of the client commands mean nothing to `serve`.
#[tokio::test]
async fn a_collector_that_is_not_trusted_is_reported_with_the_key_that_names_its_authority() {
    let collector = Collector::start().await;
    let [authority, other] = [(); 2].map(|()| Authority::new());
    let (mut serving, _front) = serve_trusting(&collector, &authority, &other);
    post(&serving, "/locks/a").await;
    let line = serving.wait_for_line("spans cannot be exported and are dropped; requests go on");
    let problem = line["problem"].as_str().unwrap();
    assert!(
        problem.ends_with("name that authority with traces.ca_file"),
        "{problem}"
    );
    assert!(collector.received().is_empty());
}

//! What reaches the binary from a browser that shows somebody else's page; and that our own pages need no script but those
//! that they may load.

use std::process::{Command, Stdio};

use reqwest::{Client, RequestBuilder};

use crate::process::Serving;

async fn status(request: RequestBuilder) -> u16 {
    request.send().await.unwrap().status().as_u16()
}

/// A form of another site, and a page whose own name resolves to our address: etcd's CVE-2018-1098 and CVE-2018-1099.
#[tokio::test]
async fn a_web_page_neither_takes_nor_evicts_locks_of_a_service_without_a_key() {
    let serving = Serving::start(&[]);
    let client = Client::new();
    let lock = format!("{}/locks/a", serving.url);
    let forged = client.post(&lock).header("Origin", "http://evil.example");
    assert_eq!(
        status(forged.header("Content-Type", "text/plain").body("")).await,
        403
    );
    assert_eq!(status(client.post(&lock)).await, 201, "nobody has it");
    let forced = format!("{lock}?force=true");
    let rebound = client.delete(&forced).header("Host", "evil.example");
    assert_eq!(status(rebound).await, 403);
    assert_eq!(status(client.post(&lock)).await, 423, "it is still held");
    assert_eq!(
        status(client.delete(&forced)).await,
        200,
        "no key is needed"
    );
}

/// Over HTTP/2 the host is no header.
#[tokio::test]
async fn a_made_up_name_is_refused_in_either_protocol_unless_it_is_configured() {
    let port = |serving: &Serving| serving.url.rsplit(':').next().unwrap().to_owned();
    for hosts in ["", "locks.example"] {
        let serving = Serving::start(&["--server-hosts", hosts]);
        let address = ([127, 0, 0, 1], port(&serving).parse().unwrap()).into();
        for builder in [Client::builder(), Client::builder().http2_prior_knowledge()] {
            let client = builder.resolve("locks.example", address).build().unwrap();
            let url = format!("http://locks.example:{}/locks", port(&serving));
            let expected = if hosts.is_empty() { 403 } else { 200 };
            assert_eq!(status(client.get(url)).await, expected, "{hosts:?}");
        }
    }
}

/// The page is compressed, and curl can read that.
#[test]
fn no_script_and_no_style_stands_in_the_page_of_documents() {
    let serving = Serving::start(&[]);
    let found = Command::new("curl")
        .args(["--fail", "--silent", "--compressed", "--noproxy", "*"])
        .arg(format!("{}/docs/", serving.url))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let page = String::from_utf8(found.stdout).unwrap();
    let scripts: Vec<_> = page.split("<script").skip(1).collect();
    assert!(!scripts.is_empty(), "{page}");
    for script in scripts {
        let (tag, rest) = script.split_once('>').unwrap();
        assert!(tag.contains("src=\"./"), "{script}");
        assert!(rest.trim_start().starts_with("</script>"), "{script}");
    }
    assert!(
        !page.contains("<style") && !page.contains("style=\""),
        "{page}"
    );
}

//! Where traces are sent: what is refused before anything is, and that its headers are a secret.

use super::{complaint, file, from_environment};

const ENDPOINT: (&str, &str) = ("LEASEHOLD_TRACES_ENDPOINT", "http://127.0.0.1:4318");

#[test]
fn nothing_is_traced_without_an_endpoint() {
    let (config, _) = from_environment(&[]).unwrap();
    assert!(config.traces.is_none());
    let (config, _) = from_environment(&[ENDPOINT]).unwrap();
    let traces = config.traces.unwrap();
    assert_eq!(traces.endpoint, ENDPOINT.1);
    assert_eq!(traces.service_name, "leasehold");
    assert_eq!(traces.sampled_per_million, 1_000_000);
}

#[test]
fn an_endpoint_is_a_url() {
    for endpoint in ["https://collector", "http://[::1]:4318/otlp/v1/traces"] {
        from_environment(&[(ENDPOINT.0, endpoint)]).unwrap();
    }
    for endpoint in [
        "127.0.0.1:4318",
        "collector",
        "grpc://collector:4317",
        "http://",
        "http://collector:port",
        "http://collector:99999",
    ] {
        let error = complaint(from_environment(&[(ENDPOINT.0, endpoint)]));
        let problem = format!("\"{endpoint}\" is not the URL of a collector");
        assert!(error.contains(&problem), "{error}");
    }
    for (name, value, words) in [
        ("SERVICE_NAME", "", "is empty"),
        ("CA_FILE", "/nowhere", "cannot be read"),
        ("SAMPLED_PER_MILLION", "1000001", "more than 1000000"),
        ("SPANS_MAX", "0", "is not a whole number from 1"),
        (
            "ENDPOINT",
            "",
            "traces.headers: has no effect without traces.endpoint",
        ),
    ] {
        let variable = format!("LEASEHOLD_TRACES_{name}");
        let headers = ("LEASEHOLD_TRACES_HEADERS", "a=b");
        let mut given = vec![headers, ENDPOINT, (&*variable, value)];
        if name == "ENDPOINT" {
            given.remove(1);
        }
        let error = complaint(from_environment(&given));
        assert!(error.contains(words), "{name}: {error}");
    }
}

#[test]
fn an_endpoint_with_a_secret_is_refused_and_not_repeated() {
    for endpoint in [
        "http://user:s3cret@collector",
        "user:s3cret@collector:port",
        "https://collector/v1/traces?key=s3cret",
        "https://collector#s3cret",
    ] {
        let error = complaint(from_environment(&[(ENDPOINT.0, endpoint)]));
        assert!(
            error.contains("has a user, a query or a fragment"),
            "{error}"
        );
        assert!(!error.contains("s3cret"), "{error}");
    }
}

#[test]
fn headers_are_a_secret_in_the_form_of_opentelemetry() {
    let headers = "authorization=Bearer%20s3cret, X-Team = locks,";
    let from_file = file(headers);
    let from_file = from_file.path().to_str().unwrap();
    for given in [
        ("LEASEHOLD_TRACES_HEADERS", headers),
        ("LEASEHOLD_TRACES_HEADERS_FILE", from_file),
    ] {
        let (config, settings) = from_environment(&[ENDPOINT, given]).unwrap();
        let sent = config.traces.as_ref().unwrap().headers.iter();
        let sent: Vec<_> = sent
            .map(|(name, value)| (name.as_str(), value.expose()))
            .collect();
        assert_eq!(
            sent,
            [("authorization", "Bearer s3cret"), ("x-team", "locks")]
        );
        assert!(!settings.to_string().contains("s3cret"), "{settings}");
        assert!(!format!("{config:?}").contains("s3cret"));
    }
    for headers in [
        "s3cret",
        "=s3cret",
        "a b=s3cret",
        "a=s3cret%0d%0a",
        "a=s3cret%ff",
    ] {
        let error = complaint(from_environment(&[
            ENDPOINT,
            ("LEASEHOLD_TRACES_HEADERS", headers),
        ]));
        assert!(error.contains("is not a list of headers"), "{error}");
        assert!(!error.contains("s3cret"), "{error}");
    }
}

/// A second `Content-Length` would make the request another one.
#[test]
fn headers_that_the_request_has_already_are_refused() {
    for name in ["Host", "content-length", "Transfer-Encoding"] {
        let headers = format!("a=b,{name}=s3cret");
        let error = complaint(from_environment(&[
            ENDPOINT,
            ("LEASEHOLD_TRACES_HEADERS", &headers),
        ]));
        let named = format!("\"{}\"", name.to_lowercase());
        assert!(error.contains(&named), "{error}");
        assert!(!error.contains("s3cret"), "{error}");
    }
}

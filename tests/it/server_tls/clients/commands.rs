//! The commands show a certificate, and are known by it.

use std::fs;
use std::process::Output;

use leasehold::client::{Call, CertificateFiles, Client, RetryPolicy, ServiceUrl, StreamAnswer};

use super::{Authority, Served, WEB};
use crate::process::leasehold;
use crate::run::assert_code;
use crate::support::redis_server::TlsFiles;

impl Served {
    fn url(&self) -> String {
        let port = self.serving.url.rsplit_once(':').unwrap().1;
        format!("https://localhost:{port}")
    }

    fn client(&self, files: &TlsFiles) -> Client {
        let files = CertificateFiles {
            certificate: files.certificate.clone().into(),
            key: files.key.clone().into(),
        };
        let url = ServiceUrl::parse(&self.url()).unwrap();
        let trusted = self.own.trusted().authorities;
        Client::new(url, None, trusted.as_deref(), Some(files)).unwrap()
    }

    fn ask(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
        let mut command = leasehold(arguments);
        command
            .env("LEASEHOLD_URL", self.url())
            .env("LEASEHOLD_CA_FILE", self.own.file())
            .envs(variables.iter().copied());
        command.output().unwrap()
    }
}

#[test]
fn a_command_is_known_by_the_certificate_that_it_shows() {
    let authority = Authority::new();
    let served = Served::start(&authority, &["--server-tls-client-certificate", "required"]);
    let TlsFiles {
        certificate, key, ..
    } = authority.files_for(WEB);
    let variables = [
        ("LEASEHOLD_CLIENT_CERT_FILE", certificate.as_str()),
        ("LEASEHOLD_CLIENT_KEY_FILE", key.as_str()),
    ];
    assert_code(&served.ask(&["acquire", "web/1"], &variables), 0);
    let of_another = served.ask(&["acquire", "billing/1"], &variables);
    assert_code(&of_another, 78);
    let reason = String::from_utf8(of_another.stderr).unwrap();
    assert!(reason.contains("the principal web has no rule"), "{reason}");
    // The command of `run` shows the same certificate.
    let flags = [
        "--client-cert-file",
        &certificate,
        "--client-key-file",
        &key,
    ];
    let program = env!("CARGO_BIN_EXE_leasehold");
    let command = ["web/2", "--", program, "acquire", "web/3"];
    let ran = served.ask(&[&["run"], &flags[..], &command].concat(), &[]);
    assert_code(&ran, 0);
}

#[test]
fn a_certificate_that_is_refused_is_explained_and_not_shown_again() {
    let (authority, other) = (Authority::new(), Authority::new());
    let served = Served::start(&authority, &["--server-tls-client-certificate", "required"]);
    let expired = authority.expired_files_for(WEB);
    let unknown = other.files_for(WEB);
    for (files, reason) in [
        (
            None,
            "it wants a certificate; name the files of one with --client-cert-file and --client-key-file",
        ),
        (
            Some(&unknown),
            "the certificate of this client is not from an authority that it trusts",
        ),
        (Some(&expired), "the certificate of this client has expired"),
    ] {
        let variables = files.map(|files| {
            [
                ("LEASEHOLD_CLIENT_CERT_FILE", &*files.certificate),
                ("LEASEHOLD_CLIENT_KEY_FILE", &*files.key),
            ]
        });
        let refused = served.ask(&["acquire", "web/1"], variables.as_slice().as_flattened());
        assert_code(&refused, 78);
        let text = String::from_utf8(refused.stderr).unwrap();
        assert!(
            text.contains(&format!("refuses the connection: {reason}")),
            "{text}"
        );
        let flags = files.map(|files| {
            [
                "--client-cert-file",
                &*files.certificate,
                "--client-key-file",
                &*files.key,
            ]
        });
        // The refusal may arrive before, while or after the request is sent.
        for _ in 0..4 {
            let examined = [&["doctor", "--json"], flags.as_slice().as_flattened()].concat();
            let examined = served.ask(&examined, &[]);
            assert_code(&examined, 78);
            let text = String::from_utf8(examined.stdout).unwrap();
            assert!(text.contains(reason), "{text}");
        }
    }
}

/// It shows no certificate.
#[test]
fn a_healthcheck_that_is_refused_without_a_certificate_says_what_to_ask() {
    let authority = Authority::new();
    let served = Served::start(&authority, &["--server-tls-client-certificate", "required"]);
    let (url, file) = (served.url(), served.own.file());
    for _ in 0..4 {
        let refused = served.ask(&["healthcheck", "--url", &url, "--ca-file", &file], &[]);
        assert_code(&refused, 1);
        let text = String::from_utf8(refused.stderr).unwrap();
        let reason = "refuses the connection: it wants a certificate; ask its server.admin_listen";
        assert!(text.contains(reason), "{text}");
    }
}

#[test]
fn a_certificate_that_cannot_be_shown_is_explained() {
    let authority = Authority::new();
    let served = Served::start(&authority, &[]);
    let (own, other) = (
        authority.files_for(WEB),
        authority.files_for("other.example"),
    );
    for (certificate, key, reason) in [
        (
            &*own.certificate,
            "",
            "set --client-key-file or LEASEHOLD_CLIENT_KEY_FILE too",
        ),
        (
            "",
            &*own.key,
            "set --client-cert-file or LEASEHOLD_CLIENT_CERT_FILE too",
        ),
        (&*own.certificate, "/nowhere", "/nowhere: cannot be read"),
        (&*own.key, &*own.key, "has no certificate in PEM form"),
        (
            &*own.certificate,
            &*other.key,
            "is not the key of the certificate in",
        ),
    ] {
        let variables = [
            ("LEASEHOLD_CLIENT_CERT_FILE", certificate),
            ("LEASEHOLD_CLIENT_KEY_FILE", key),
        ];
        let set = variables.into_iter().filter(|(_, file)| !file.is_empty());
        let refused = served.ask(&["acquire", "web/1"], &set.collect::<Vec<_>>());
        assert_code(&refused, 78);
        let text = String::from_utf8(refused.stderr).unwrap();
        assert!(text.contains(reason), "{text}");
    }
}

/// A certificate of a pod is replaced while its program runs.
#[tokio::test]
async fn the_files_of_a_certificate_are_read_for_each_connection() {
    let authority = Authority::new();
    let served = Served::start(&authority, &[]);
    let [web, nobody] = [WEB, "nobody.example"].map(|name| authority.files_for(name));
    let shown = authority.files_for("shown.example");
    let show = |files: &TlsFiles| {
        fs::copy(&files.certificate, &shown.certificate).unwrap();
        fs::copy(&files.key, &shown.key).unwrap();
    };
    show(&web);
    let client = served.client(&shown);
    // Each stream has a connection of its own. No principal may have one, which says who it would be.
    let status = async || match client.open_stream("/events", None).await.unwrap() {
        StreamAnswer::Refused(answer) => answer.status.as_u16(),
        StreamAnswer::Open(_) => 200,
    };
    assert_eq!(status().await, 403, "the principal web");
    show(&nobody);
    assert_eq!(status().await, 401, "no principal");
    show(&web);
    assert_eq!(status().await, 403);
    // Only one of the two files is new so far.
    fs::copy(&nobody.certificate, &shown.certificate).unwrap();
    assert_eq!(status().await, 403, "the certificate before");
    fs::write(&shown.key, "").unwrap();
    assert_eq!(status().await, 403, "the certificate before");
}

/// The certificate of before is shown while its files cannot be used, which would otherwise be unknown.
#[tokio::test]
async fn a_refusal_says_whether_the_files_can_be_used() {
    let served = Served::start(
        &Authority::new(),
        &["--server-tls-client-certificate", "required"],
    );
    let unknown = Authority::new();
    let files = unknown.files_for(WEB);
    let mut client = served.client(&files);
    let call = Call::get("/locks/web/1".to_owned());
    let mut refusal = async || {
        let answer = client.send_repeatedly(&call, RetryPolicy::Always).await;
        answer.unwrap_err().to_string()
    };
    let refused = refusal().await;
    assert!(
        refused.ends_with("is not from an authority that it trusts"),
        "{refused}"
    );
    fs::write(&files.key, "").unwrap();
    let refused = refusal().await;
    let problem = format!("its files cannot be used any more: {}", files.key);
    assert!(refused.contains(&problem), "{refused}");
}

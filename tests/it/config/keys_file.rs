//! The keys file: what it may say, and messages about the line that is wrong.

use leasehold::config::{Auth, CertificateName, KeyHash, KeysFile};
use leasehold::domain::{LockName, Verb};

use super::{KEY, OTHER_KEY, complaint, file, from_environment};

const FILE: &str = "LEASEHOLD_AUTH_KEYS_FILE";

fn hash(key: &str) -> String {
    KeyHash::of(key.as_bytes()).to_string()
}

pub(super) fn principal(name: &str, key: &str, rest: &str) -> String {
    format!("[principals.{name}]\nkeys = [\"{}\"]\n{rest}\n", hash(key))
}

/// What is said about a file, without its path.
fn complaint_about(text: &str) -> String {
    let file = file(text);
    let path = file.path().to_str().unwrap();
    let complaint = complaint(from_environment(&[(FILE, path)]));
    let place = complaint.strip_prefix(path);
    place.unwrap_or_else(|| panic!("{complaint}")).to_owned()
}

#[test]
fn a_keys_file_says_who_may_do_what() {
    let text = principal(
        "billing",
        KEY,
        "bind_owner = true\nrules = [\n  { prefix = \"orders\", verbs = [\"acquire\", \"read\"] },\n]",
    ) + &principal("\"spiffe://a/b\"", OTHER_KEY, "");
    let file = file(&text);
    let path = file.path().to_str().unwrap();
    let (config, _) = from_environment(&[(FILE, path), ("LEASEHOLD_LISTEN", ":7625")]).unwrap();
    let Auth::Keys(keys) = config.auth else {
        panic!("a keys file is enough to ask for keys");
    };
    assert!(keys.api.is_none() && keys.are_from_files());
    let principals = keys.file.unwrap().principals;
    let [billing, other] = &principals[..] else {
        panic!("two principals, but: {principals:?}");
    };
    assert_eq!(
        (billing.name.as_str(), other.name.as_str()),
        ("billing", "spiffe://a/b")
    );
    assert!(billing.binds_owner && !other.binds_owner);
    assert_eq!(billing.keys, [KeyHash::of(KEY.as_bytes())]);
    let name = LockName::parse(b"orders/1").unwrap();
    assert!(billing.rights.permit(Verb::Acquire, &name));
    assert!(!billing.rights.permit(Verb::List, &name));
    assert!(!other.rights.permit(Verb::Read, &name));
}

#[test]
fn a_principal_may_be_known_by_the_names_of_certificates_alone() {
    let names = "certificates = [\"spiffe://a/b\", \"dns:Web.Example\"]";
    let file = file(&format!("[principals.a]\n{names}\n"));
    let read = KeysFile::read(file.path()).unwrap();
    let names: Vec<_> = read.principals[0].certificates.iter().collect();
    let expected = [
        CertificateName::of_uri("spiffe://a/b"),
        CertificateName::of_dns("web.example"),
    ];
    assert_eq!(names, expected.iter().collect::<Vec<_>>());
    assert!(read.principals[0].keys.is_empty());

    // Otherwise nobody could ever be this principal.
    let path = file.path().to_str().unwrap();
    let complaint = complaint(from_environment(&[(FILE, path)]));
    assert!(
        complaint.contains("a has certificates, and clients are not asked for theirs; set server.tls_client_ca_file"),
        "{complaint}"
    );
}

#[test]
fn a_name_that_no_certificate_can_have_is_refused_with_its_line() {
    let with = |names: &str| format!("[principals.a]\ncertificates = [\n  {names}\n]\n");
    let many: Vec<_> = (0..17).map(|number| format!("\"dns:{number}\"")).collect();
    assert_complaints(&[
        (
            with("\"billing.example\""),
            ":3: principals.a.certificates: \"billing.example\" is not a name of a certificate; write a URI like",
        ),
        (
            with("\"dns:\""),
            ":3: principals.a.certificates: \"dns:\" is not a name of a certificate",
        ),
        (
            with("\"dns:*.example\""),
            ":3: principals.a.certificates: \"dns:*.example\" has a *, but names are compared as they are",
        ),
        (
            with("\"spiffe://a/b c\""),
            ":3: principals.a.certificates: \"spiffe://a/b c\" has a character that no name",
        ),
        (
            with("\"dns:a\", \"dns:A\""),
            ":3: principals.a.certificates: has the same name twice",
        ),
        (
            with(&many.join(", ")),
            ":2: principals.a.certificates: has 17 names; at most 16",
        ),
        (
            with("\"dns:a\"") + "[principals.b]\ncertificates = [\"dns:a\"]\n",
            ":6: principals.b.certificates: dns:a is a name of a too; a certificate is of one principal",
        ),
        (
            "[principals.a]\ncertificates = []\n".to_owned(),
            ":1: principals.a.keys: has 0 keys",
        ),
    ]);
}

/// The beginning of each complaint about a file, without the path.
#[track_caller]
pub(super) fn assert_complaints(expected: &[(String, &str)]) {
    for (text, expected) in expected {
        let complaint = complaint_about(text);
        assert!(
            complaint.starts_with(expected),
            "{complaint}\nnot {expected}"
        );
        assert!(!complaint.contains("s3cret"), "{complaint}");
    }
}

#[test]
fn a_mistake_in_a_principal_is_reported_with_its_line() {
    assert_complaints(&[
        ("[principals.a]\nkeys = [".to_owned(), ":2: not valid TOML"),
        (
            "[principal.a]\n".to_owned(),
            ":1: principal: is unknown; did you mean principals?",
        ),
        (
            principal("a", KEY, "rule = []"),
            ":3: principals.a.rule: is unknown; did you mean rules?",
        ),
        (
            "[principals.a]\n".to_owned(),
            ":1: principals.a.keys: has 0 keys",
        ),
        (
            format!(
                "[principals.a]\nkeys = [\n\"{}\",\n\"s3cret-in-plain\"]",
                hash(KEY)
            ),
            ":4: principals.a.keys: is not the hash of a key",
        ),
        (
            principal("a", "", ""),
            ":2: principals.a.keys: is the hash of an empty text",
        ),
        (
            format!("[principals.a]\nkeys = [\"{0}\",\n\"{0}\"]", hash(KEY)),
            ":3: principals.a.keys: has the same key twice",
        ),
        (
            principal("a", KEY, "") + &principal("b", KEY, ""),
            ":5: principals.b.keys: ",
        ),
        (
            principal("a", KEY, "bind_owner = \"yes\""),
            ":3: principals.a.bind_owner: this is of the type string; write true or false",
        ),
        (
            principal("api_key", KEY, ""),
            ":1: principals.api_key: api_key is what a client",
        ),
        (
            principal("\"a b\"", KEY, ""),
            ":1: principals.a b: is not a name for a principal",
        ),
    ]);
}

#[test]
fn a_mistake_in_a_rule_is_reported_with_its_line() {
    let rules = |rules: &str| principal("a", KEY, &format!("rules = [\n{rules}\n]"));
    assert_complaints(&[
        (
            rules("{ prefix = \"orders/\", verbs = [\"read\"] }"),
            ":4: principals.a.rules.prefix: \"orders/\" ends with a slash; write \"orders\"",
        ),
        (
            rules("{ prefix = \"a b\", verbs = [\"read\"] }"),
            ":4: principals.a.rules.prefix: no lock name can begin like this",
        ),
        (
            rules("{ verbs = [\"read\"] }"),
            ":4: principals.a.rules.prefix: is missing",
        ),
        (
            rules("{ prefix = \"a\", verbs = [\"metrics\"] }"),
            ":4: principals.a.rules.prefix: metrics are about all locks",
        ),
        (
            rules("{ prefix = \"a\", verbs = [\n\"write\"] }"),
            ":5: principals.a.rules.verbs: \"write\" is not a verb; verbs are acquire, ",
        ),
        (
            rules("{ prefix = \"a\" }"),
            ":4: principals.a.rules.verbs: is empty",
        ),
    ]);
}

#[test]
fn the_number_of_keys_and_rules_is_bounded() {
    let keys: Vec<_> = (0..3)
        .map(|number| format!("\"{}\"", hash(&number.to_string())))
        .collect();
    let complaint = complaint_about(&format!("[principals.a]\nkeys = [{}]", keys.join(", ")));
    assert!(complaint.contains("has 3 keys"), "{complaint}");
    let rules = "{ prefix = \"a\", verbs = [\"read\"] },\n";
    let of = |count: usize| principal("a", KEY, &format!("rules = [{}]", rules.repeat(count)));
    let complaint = complaint_about(&of(65));
    assert!(complaint.contains("at most 64"), "{complaint}");
    let file = file(&of(64));
    assert!(KeysFile::read(file.path()).is_ok());
}

/// A file is empty while it is being written, and would lock every client out.
#[test]
fn a_keys_file_without_a_principal_is_refused() {
    for text in ["", "[principals]\n"] {
        let complaint = complaint_about(text);
        assert!(complaint.contains("principals: is missing"), "{complaint}");
    }
}

#[test]
fn a_keys_file_that_cannot_be_read_is_named_once() {
    let path = "/nowhere/keys.toml";
    let complaint = complaint(from_environment(&[(FILE, path)]));
    assert!(
        complaint.starts_with("/nowhere/keys.toml: cannot be read: No such file"),
        "{complaint}"
    );
}

#[test]
fn no_key_belongs_to_two_senders() {
    let file = file(&principal("a", KEY, ""));
    let path = file.path().to_str().unwrap();
    let complaint = complaint(from_environment(&[
        (FILE, path),
        ("LEASEHOLD_API_KEY", KEY),
    ]));
    assert!(
        complaint.contains("is a key of a too, in the keys file"),
        "{complaint}"
    );
    assert!(from_environment(&[(FILE, path), ("LEASEHOLD_API_KEY", OTHER_KEY)]).is_ok());
}

#[test]
fn a_keys_file_contradicts_a_service_for_everybody() {
    let file = file(&principal("a", KEY, ""));
    let path = file.path().to_str().unwrap();
    let complaint = complaint(from_environment(&[
        (FILE, path),
        ("LEASEHOLD_AUTH", "none"),
    ]));
    assert!(
        complaint.contains("none contradicts the auth_keys_file"),
        "{complaint}"
    );
}

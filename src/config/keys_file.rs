//! The keys file: principals, the hashes of their keys, the rules that say what each may do, and their quotas. Every error
//! names the line. `http` applies the rules and the quotas.

mod quota;
mod tables;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::certificate_name::CertificateName;
use super::error::ConfigError;
use super::key_hash::KeyHash;
use super::secret;
use crate::domain::{NamePrefix, Rights, Rule, Verb, Verbs};
pub use quota::{Quota, RequestRate};
use tables::{Section, SourceFile};

/// The longest keys file, in bytes: some five thousand principals.
const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// How many keys of a principal are valid at once: the one before a change of keys and the one after it.
const KEYS_MAX: usize = 2;
/// How many names of certificates a principal may have.
const CERTIFICATES_MAX: usize = 16;
/// How many subjects of tokens a principal may have.
const SUBJECTS_MAX: usize = 64;
/// The longest subject, in bytes. That of a service account of Kubernetes has 343 at most.
const SUBJECT_BYTES_MAX: usize = 512;
/// How many rules a principal may have. A request may look at all of them.
const RULES_MAX: usize = 64;
/// The longest name of a principal, in bytes.
const NAME_BYTES_MAX: usize = 64;
/// The names that the audit stream has for clients with these keys.
const TAKEN_NAMES: [&str; 3] = ["api_key", "admin_key", "read_key"];
/// The table of a quota: of one principal, or at the top of the file of each that does not say otherwise.
const QUOTA: &str = "quota";
/// In a rule, this stands for all verbs.
pub const ADMIN: &str = "admin";

/// The principals of a keys file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeysFile {
    /// The file as it was named.
    pub path: PathBuf,
    /// In the order of their names.
    pub principals: Vec<PrincipalEntry>,
}

/// One principal of a keys file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrincipalEntry {
    /// Its name in refusals, in the log and in the audit stream.
    pub name: String,
    /// The hashes of its keys: one, or two while keys are changed; none if it is known by certificates or tokens alone.
    pub keys: Vec<KeyHash>,
    /// The names in the certificates of its clients.
    pub certificates: Vec<CertificateName>,
    /// The subjects of the tokens of its clients.
    pub subjects: Vec<String>,
    /// What it may do.
    pub rights: Rights,
    /// Whether its name is the `owner` of all its claims, so that nobody else can appear as it.
    pub binds_owner: bool,
    /// How much of the service it may use.
    pub quota: Quota,
}

impl KeysFile {
    /// Reads a keys file.
    ///
    /// # Errors
    /// The first thing that is wrong with it, with its line.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let reason = |text: String| ConfigError::Unreadable {
            path: path.to_owned(),
            reason: text,
        };
        let contents = secret::bounded(path, FILE_BYTES_MAX).map_err(|problem| {
            // The error names the file once.
            let shown = format!("{}: ", path.display());
            let problem = problem.strip_prefix(&shown).unwrap_or(&problem);
            let problem = problem.strip_prefix("cannot be read: ").unwrap_or(problem);
            reason(problem.to_owned())
        })?;
        let text = String::from_utf8(contents).map_err(|_| reason("it is not UTF-8".to_owned()))?;
        let place = SourceFile { path, text: &text };
        Ok(Self {
            path: path.to_owned(),
            principals: principals(&place)?,
        })
    }
}

fn principals(place: &SourceFile<'_>) -> Result<Vec<PrincipalEntry>, ConfigError> {
    let document = place.parse()?;
    let top = Section::top(place, &document);
    top.has_only(&["principals", QUOTA])?;
    let quota_of_each = match top.table(QUOTA)? {
        Some(table) => Quota::parse(&table, &Quota::default())?,
        None => Quota::default(),
    };
    let mut principals = Vec::new();
    let (mut names_of_keys, mut owners_of_names) = (HashMap::new(), HashMap::new());
    let mut owners_of_subjects = HashMap::new();
    for (name, table) in top.tables("principals")? {
        let entry = principal(name, &table, &quota_of_each)?;
        for key in &entry.keys {
            if let Some(other) = names_of_keys.insert(*key, name) {
                let problem = format!(
                    "{}… is a key of {other} too; give each principal a key of its own",
                    key.beginning()
                );
                return Err(table.invalid("keys", problem));
            }
        }
        for certificate in &entry.certificates {
            if let Some(other) = owners_of_names.insert(certificate.clone(), name) {
                let problem = format!(
                    "{certificate} is a name of {other} too; a certificate is of one principal"
                );
                return Err(table.invalid("certificates", problem));
            }
        }
        for subject in &entry.subjects {
            if let Some(other) = owners_of_subjects.insert(subject.clone(), name) {
                let problem =
                    format!("{subject} is a subject of {other} too; a subject is of one principal");
                return Err(table.invalid("subjects", problem));
            }
        }
        principals.push(entry);
    }
    // A file that is being written is empty at first, and would lock every client out.
    if principals.is_empty() {
        return Err(top.invalid(
            "principals",
            "is missing; write at least one, like [principals.billing]".to_owned(),
        ));
    }
    Ok(principals)
}

fn principal(
    name: &str,
    table: &Section<'_>,
    quota_of_each: &Quota,
) -> Result<PrincipalEntry, ConfigError> {
    check_name(name).map_err(|problem| table.invalid("", problem))?;
    table.has_only(&[
        "keys",
        "certificates",
        "subjects",
        "rules",
        "bind_owner",
        QUOTA,
    ])?;
    let quota = match table.table(QUOTA)? {
        Some(own) => Quota::parse(&own, quota_of_each)?,
        None => quota_of_each.clone(),
    };
    let (certificates, subjects) = (certificates(table)?, subjects(table)?);
    let rules = table.tables_in_array("rules")?;
    if rules.len() > RULES_MAX {
        let problem = format!("has {} rules; at most {RULES_MAX} are allowed", rules.len());
        return Err(table.invalid("rules", problem));
    }
    let rules = rules.iter().map(rule).collect::<Result<_, _>>()?;
    Ok(PrincipalEntry {
        name: name.to_owned(),
        keys: keys(table, !certificates.is_empty() || !subjects.is_empty())?,
        certificates,
        subjects,
        rights: Rights::new(rules),
        binds_owner: table.boolean("bind_owner")?.unwrap_or(false),
        quota,
    })
}

/// The name is shown as it is in the log, in refusals and as an owner.
fn check_name(name: &str) -> Result<(), String> {
    if TAKEN_NAMES.contains(&name) {
        return Err(format!(
            "{name} is what a client with the setting {name} is called; choose another name"
        ));
    }
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-@:/+".contains(&byte);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_allowed) {
        return Err(format!(
            "is not a name for a principal; use 1 to {NAME_BYTES_MAX} letters, digits and . _ - @ : / +"
        ));
    }
    Ok(())
}

fn certificates(table: &Section<'_>) -> Result<Vec<CertificateName>, ConfigError> {
    let at_most = (CERTIFICATES_MAX, "name");
    distinct(table, "certificates", at_most, CertificateName::parse)
}

/// Subjects are compared as a whole: part of one is chosen by whoever may create the account that it names.
fn subjects(table: &Section<'_>) -> Result<Vec<String>, ConfigError> {
    distinct(table, "subjects", (SUBJECTS_MAX, "subject"), |text| {
        if text.is_empty() || text.len() > SUBJECT_BYTES_MAX {
            Err(format!(
                "has a subject that does not have 1 to {SUBJECT_BYTES_MAX} bytes"
            ))
        } else if text.contains('*') {
            Err(format!(
                "\"{text}\" has a *, but subjects are compared as they are; list each of them"
            ))
        } else {
            Ok(text.to_owned())
        }
    })
}

/// The texts in the array of this name as `parse` reads them, each once. There are at most `max`, called `noun`.
fn distinct<T: PartialEq>(
    table: &Section<'_>,
    key: &str,
    (max, noun): (usize, &str),
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, ConfigError> {
    let texts = table.texts(key)?;
    if texts.len() > max {
        let problem = format!("has {} {noun}s; at most {max} are allowed", texts.len());
        return Err(table.invalid(key, problem));
    }
    let mut values = Vec::with_capacity(texts.len());
    for (text, offset) in texts {
        let invalid = |problem| table.invalid_at(offset, key, problem);
        let value = parse(text).map_err(invalid)?;
        if values.contains(&value) {
            let problem = format!("has the same {noun} twice; leave one out");
            return Err(table.invalid_at(offset, key, problem));
        }
        values.push(value);
    }
    Ok(values)
}

fn keys(table: &Section<'_>, needs_none: bool) -> Result<Vec<KeyHash>, ConfigError> {
    let texts = table.texts("keys")?;
    if (texts.is_empty() && !needs_none) || texts.len() > KEYS_MAX {
        let problem = format!(
            "has {} keys; give the hash of one key, or of {KEYS_MAX} while clients change from one to the other",
            texts.len()
        );
        return Err(table.invalid("keys", problem));
    }
    let mut keys = Vec::with_capacity(texts.len());
    for (text, offset) in texts {
        // The text is not quoted: somebody may have written the key itself.
        let key = KeyHash::parse(text).ok_or_else(|| {
            let problem = "is not the hash of a key; write what `leasehold keys hash` prints, like \"sha256:…\" with 64 digits";
            table.invalid_at(offset, "keys", problem)
        })?;
        if key == KeyHash::of(b"") {
            let problem = "is the hash of an empty text, which no client can send; was the file of the key empty?";
            return Err(table.invalid_at(offset, "keys", problem));
        }
        if keys.contains(&key) {
            return Err(table.invalid_at(offset, "keys", "has the same key twice; leave one out"));
        }
        keys.push(key);
    }
    Ok(keys)
}

fn rule(table: &Section<'_>) -> Result<Rule, ConfigError> {
    table.has_only(&["prefix", "verbs"])?;
    let verbs = verbs(table)?;
    // Metrics have no name. A rule about locks states which, also if that is all of them: a forgotten prefix would
    // permit everything.
    let is_of_metrics = verbs == Verb::Metrics.into();
    let (prefix, offset) = match table.text("prefix")? {
        Some((text, offset)) => {
            let prefix = prefix(text);
            let prefix = prefix.map_err(|problem| table.invalid_at(offset, "prefix", problem))?;
            (prefix, offset)
        }
        None if is_of_metrics => (NamePrefix::EVERY, table.offset()),
        None => {
            let problem = "is missing; write the first segments of the names, like \"orders\", or \"\" for every lock";
            return Err(table.invalid("prefix", problem));
        }
    };
    if verbs.contains(Verb::Metrics) && verbs != Verbs::ALL && !prefix.is_of_every_lock() {
        let problem =
            "metrics are about all locks; put the verb metrics into a rule without a prefix";
        return Err(table.invalid_at(offset, "prefix", problem));
    }
    Ok(Rule { prefix, verbs })
}

fn prefix(text: &str) -> Result<NamePrefix, String> {
    if let Some(name) = text.strip_suffix('/').filter(|name| !name.is_empty()) {
        return Err(format!(
            "\"{text}\" ends with a slash; write \"{name}\", which covers {name} and all that is below {name}/"
        ));
    }
    NamePrefix::parse(text).map_err(|error| format!("no lock name can begin like this: {error}"))
}

fn verbs(table: &Section<'_>) -> Result<Verbs, ConfigError> {
    let texts = table.texts("verbs")?;
    if texts.is_empty() {
        return Err(table.invalid("verbs", format!("is empty; {}", words())));
    }
    let mut verbs = Verbs::default();
    for (text, offset) in texts {
        let verb = Verb::ALL.into_iter().find(|verb| verb.as_str() == text);
        let of_word = match (text, verb) {
            (ADMIN, _) => Some(Verbs::ALL),
            (_, verb) => verb.map(Verbs::from),
        };
        let of_word = of_word.ok_or_else(|| {
            let problem = format!("\"{text}\" is not a verb; {}", words());
            table.invalid_at(offset, "verbs", problem)
        })?;
        verbs = verbs.and(of_word);
    }
    Ok(verbs)
}

fn words() -> String {
    let words = Verb::ALL.map(Verb::as_str).join(", ");
    format!("verbs are {words}, and {ADMIN} for all of them")
}

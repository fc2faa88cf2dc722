//! Typed access to the tables of a TOML file whose errors name the line. Nothing here knows what the values mean.

use std::num::NonZeroU32;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::config::error::{ConfigError, Origin};
use crate::config::suggestion::did_you_mean;

/// A file and its text.
#[derive(Clone, Copy)]
pub(super) struct SourceFile<'a> {
    pub(super) path: &'a Path,
    pub(super) text: &'a str,
}

impl<'a> SourceFile<'a> {
    pub(super) fn parse(&self) -> Result<Spanned<DeTable<'a>>, ConfigError> {
        DeTable::parse(self.text).map_err(|error| ConfigError::Syntax {
            origin: self.origin(error.span().map_or(0, |span| span.start)),
            reason: error.message().lines().collect::<Vec<_>>().join(", "),
        })
    }

    fn origin(&self, offset: usize) -> Origin {
        let before = &self.text.as_bytes()[..offset.min(self.text.len())];
        Origin::File {
            path: self.path.to_owned(),
            line: before.iter().filter(|byte| **byte == b'\n').count() + 1,
        }
    }
}

/// A table of the file.
pub(super) struct Section<'a> {
    place: &'a SourceFile<'a>,
    table: &'a DeTable<'a>,
    /// The dotted path to it, for errors.
    path: String,
    offset: usize,
}

impl<'a> Section<'a> {
    pub(super) fn top(place: &'a SourceFile<'a>, document: &'a Spanned<DeTable<'a>>) -> Self {
        Self {
            place,
            table: document.get_ref(),
            path: String::new(),
            offset: 0,
        }
    }

    /// Where the table begins.
    pub(super) fn offset(&self) -> usize {
        self.offset
    }

    /// An error about a key of the table, or about the table if there is none of this name.
    pub(super) fn invalid(&self, key: &str, problem: impl Into<String>) -> ConfigError {
        let known = self.table.iter().find(|(name, _)| name.get_ref() == key);
        let offset = known.map_or(self.offset, |(name, _)| name.span().start);
        self.invalid_at(offset, key, problem)
    }

    /// An error about a key of the table, at this offset. Only an error counts the lines before it.
    pub(super) fn invalid_at(
        &self,
        offset: usize,
        key: &str,
        problem: impl Into<String>,
    ) -> ConfigError {
        ConfigError::invalid(&self.place.origin(offset), &self.path_to(key), problem)
    }

    /// Refuses keys other than these.
    pub(super) fn has_only(&self, known: &[&'static str]) -> Result<(), ConfigError> {
        for (name, _) in self.table {
            if known.contains(&name.get_ref().as_ref()) {
                continue;
            }
            let nearest = did_you_mean(name.get_ref(), known.iter().copied());
            let hint = match nearest {
                Some(nearest) => format!("did you mean {nearest}?"),
                None => format!("known here: {}", known.join(", ")),
            };
            let problem = format!("is unknown; {hint}");
            return Err(self.invalid_at(name.span().start, name.get_ref(), problem));
        }
        Ok(())
    }

    /// The table of this name, if it is there.
    pub(super) fn table(&self, key: &str) -> Result<Option<Self>, ConfigError> {
        let entry = self.table.iter().find(|(name, _)| name.get_ref() == key);
        let Some((name, value)) = entry else {
            return Ok(None);
        };
        let inner = value.get_ref().as_table();
        Ok(Some(Self {
            place: self.place,
            table: inner.ok_or_else(|| self.mistyped(key, value, "a table"))?,
            path: self.path_to(key),
            offset: name.span().start,
        }))
    }

    /// The tables in the table of this name, in the order of their names.
    pub(super) fn tables(&self, key: &str) -> Result<Vec<(&'a str, Self)>, ConfigError> {
        let Some(value) = self.value(key) else {
            return Ok(Vec::new());
        };
        let Some(tables) = value.get_ref().as_table() else {
            return Err(self.mistyped(key, value, "tables, like [principals.billing]"));
        };
        let tables = tables.iter().map(|(name, value)| {
            let text = name.get_ref().as_ref();
            let inner = value.get_ref().as_table();
            let table = inner.ok_or_else(|| self.mistyped(key, value, "tables"))?;
            let table = Self {
                place: self.place,
                table,
                path: format!("{key}.{text}"),
                offset: name.span().start,
            };
            Ok((text, table))
        });
        tables.collect()
    }

    /// The tables in the array of this name.
    pub(super) fn tables_in_array(&self, key: &str) -> Result<Vec<Self>, ConfigError> {
        let form = "an array of tables, like [{ prefix = \"orders\", verbs = [\"acquire\"] }]";
        let values = self.array(key, form)?.into_iter();
        let tables = values.map(|value| {
            let inner = value.get_ref().as_table();
            let table = inner.ok_or_else(|| self.mistyped(key, value, form))?;
            Ok(Self {
                place: self.place,
                table,
                path: format!("{}.{key}", self.path),
                offset: value.span().start,
            })
        });
        tables.collect()
    }

    /// The texts in the array of this name, each with its offset.
    pub(super) fn texts(&self, key: &str) -> Result<Vec<(&'a str, usize)>, ConfigError> {
        let form = "an array of texts, like [\"…\"]";
        let values = self.array(key, form)?.into_iter();
        let texts = values.map(|value| {
            let text = value.get_ref().as_str();
            let text = text.ok_or_else(|| self.mistyped(key, value, form))?;
            Ok((text, value.span().start))
        });
        texts.collect()
    }

    /// The text of this name with its offset, if it is there.
    pub(super) fn text(&self, key: &str) -> Result<Option<(&'a str, usize)>, ConfigError> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let text = value.get_ref().as_str();
        let text = text.ok_or_else(|| self.mistyped(key, value, "a text in quotes"))?;
        Ok(Some((text, value.span().start)))
    }

    /// The boolean of this name, if it is there.
    pub(super) fn boolean(&self, key: &str) -> Result<Option<bool>, ConfigError> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let boolean = value.get_ref().as_bool();
        boolean
            .map(Some)
            .ok_or_else(|| self.mistyped(key, value, "true or false"))
    }

    /// The number of this name, from 1 to `max`, if it is there.
    pub(super) fn number(&self, key: &str, max: u32) -> Result<Option<NonZeroU32>, ConfigError> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let integer = value.get_ref().as_integer();
        let integer = integer.ok_or_else(|| self.mistyped(key, value, "a whole number"))?;
        let number = u32::from_str_radix(integer.as_str(), integer.radix()).ok();
        let number = number.filter(|number| *number <= max);
        number.and_then(NonZeroU32::new).map(Some).ok_or_else(|| {
            let problem = format!("{integer} is out of range; use 1 to {max}");
            self.invalid_at(value.span().start, key, problem)
        })
    }

    fn array(&self, key: &str, form: &str) -> Result<Vec<&'a Spanned<DeValue<'a>>>, ConfigError> {
        let Some(value) = self.value(key) else {
            return Ok(Vec::new());
        };
        let array = value.get_ref().as_array();
        let array = array.ok_or_else(|| self.mistyped(key, value, form))?;
        Ok(array.iter().collect())
    }

    fn path_to(&self, key: &str) -> String {
        let path = [self.path.as_str(), key];
        let path: Vec<_> = path.into_iter().filter(|part| !part.is_empty()).collect();
        path.join(".")
    }

    fn value(&self, key: &str) -> Option<&'a Spanned<DeValue<'a>>> {
        let mut entries = self.table.iter();
        let found = entries.find(|(name, _)| name.get_ref() == key);
        found.map(|(_, value)| value)
    }

    fn mistyped(&self, key: &str, value: &Spanned<DeValue<'_>>, form: &str) -> ConfigError {
        let problem = format!(
            "this is of the type {}; write {form}",
            value.get_ref().type_str()
        );
        self.invalid_at(value.span().start, key, problem)
    }
}

//! Characters of texts that could deceive or disturb their readers, and how a text is shown without them.
//!
//! Whether they are refused or replaced is decided where texts are read and shown, not here.

use std::borrow::Cow;

/// The characters that are no control characters of Unicode, but break lines, change the text direction or are invisible:
/// the property `Default_Ignorable_Code_Point`, the separators of lines and paragraphs, the marks of annotations and the
/// joiners of hieroglyphs. In order.
const INVISIBLE: [(char, char); 18] = [
    ('\u{ad}', '\u{ad}'),
    ('\u{34f}', '\u{34f}'),
    ('\u{61c}', '\u{61c}'),
    ('\u{115f}', '\u{1160}'),
    ('\u{17b4}', '\u{17b5}'),
    ('\u{180b}', '\u{180f}'),
    ('\u{200b}', '\u{200f}'),
    ('\u{2028}', '\u{202e}'),
    ('\u{2060}', '\u{206f}'),
    ('\u{3164}', '\u{3164}'),
    ('\u{fe00}', '\u{fe0f}'),
    ('\u{feff}', '\u{feff}'),
    ('\u{ffa0}', '\u{ffa0}'),
    ('\u{fff0}', '\u{fffb}'),
    ('\u{13430}', '\u{1343f}'),
    ('\u{1bca0}', '\u{1bca3}'),
    ('\u{1d173}', '\u{1d17a}'),
    ('\u{e0000}', '\u{e0fff}'),
];

/// Whether a character could forge lines in terminals and logs, or make a text look like another one: a control
/// character, one that breaks lines or changes the text direction, or an invisible one.
///
/// Joiners of emoji and of some scripts are among them. Two owners that differ only by a joiner can look the same, and no
/// simple rule distinguishes such a joiner from one that is needed.
#[must_use]
pub fn is_unprintable(letter: char) -> bool {
    letter.is_control()
        || INVISIBLE
            .iter()
            .any(|(first, last)| (*first..=*last).contains(&letter))
}

/// The text for others to read, with U+FFFD in place of each unprintable character.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    match text.contains(is_unprintable) {
        true => Cow::Owned(text.replace(is_unprintable, "\u{fffd}")),
        false => Cow::Borrowed(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_shown_without_what_hurts_a_terminal_or_a_reader() {
        let shown = printable("a\u{1b}[2J\n\u{7f}\u{9b}\u{202e}\u{200d}\u{e0061}b");
        assert_eq!(
            shown,
            "a\u{fffd}[2J\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}b"
        );
        let visible = "bücher-7 עברית 東京 क्षि \u{1f527} {\"a\": '\\'}";
        assert_eq!(printable(visible), visible);
    }

    #[test]
    fn the_ranges_are_in_order() {
        let bounds: Vec<_> = INVISIBLE
            .iter()
            .flat_map(|(first, last)| [first, last])
            .collect();
        assert!(bounds.is_sorted());
    }
}

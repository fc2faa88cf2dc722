//! The frames that cost more than their bytes, among those that an HTTP/2 client sends: SETTINGS, and heads that continue
//! in another frame. What they cost is decided in `activity`; what they mean is h2's matter.

/// The length of what precedes the frames of a connection (RFC 9113, section 3.4).
const PREFACE_LEN: usize = 24;
/// The length of the head of a frame: the length of its payload (3 bytes), its kind, its flags, its stream (section 4.1).
const HEAD_LEN: usize = 9;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// How many of each were found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CostlyFrames {
    /// Frames that change settings: those that acknowledge do not.
    pub(super) settings: usize,
    /// Heads, or trailers, that are longer than their first frame.
    pub(super) long_heads: usize,
}

/// Follows the frames of one connection.
#[derive(Debug)]
pub(super) struct Frames {
    /// How many bytes come before the head of the next frame.
    skipped: usize,
    head: [u8; HEAD_LEN],
    head_len: usize,
}

impl Frames {
    /// At the beginning of a connection.
    pub(super) fn new() -> Self {
        Self {
            skipped: PREFACE_LEN,
            head: [0; HEAD_LEN],
            head_len: 0,
        }
    }

    /// Counts those of which the first nine bytes end in the next ones.
    pub(super) fn count(&mut self, mut bytes: &[u8]) -> CostlyFrames {
        let mut count = CostlyFrames::default();
        loop {
            let skipped = self.skipped.min(bytes.len());
            self.skipped -= skipped;
            bytes = &bytes[skipped..];
            let taken = (HEAD_LEN - self.head_len).min(bytes.len());
            if taken == 0 {
                return count;
            }
            self.head[self.head_len..][..taken].copy_from_slice(&bytes[..taken]);
            self.head_len += taken;
            bytes = &bytes[taken..];
            if self.head_len < HEAD_LEN {
                return count;
            }
            let [a, b, c, kind, flags, ..] = self.head;
            count.settings += usize::from(kind == SETTINGS && flags & ACK == 0);
            count.long_heads += usize::from(kind == HEADERS && flags & END_HEADERS == 0);
            self.skipped = u32::from_be_bytes([0, a, b, c]) as usize;
            self.head_len = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_found_however_they_are_cut() {
        let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        let settings = [0, 0, 6, SETTINGS, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0];
        let acknowledged = [0, 0, 0, SETTINGS, ACK, 0, 0, 0, 0];
        // A payload that looks like a frame.
        let data = [&[0, 0, 15, 0, 0, 0, 0, 0, 1], settings.as_slice()].concat();
        let head = [0, 0, 1, HEADERS, END_HEADERS, 0, 0, 0, 1, 0x82];
        let long_head = [0, 0, 1, HEADERS, 0, 0, 0, 0, 3, 0x82];
        let continuation = [0, 0, 1, 9, END_HEADERS, 0, 0, 0, 3, 0x84];
        for frame in [&settings[..], &data, &acknowledged, &head, &settings] {
            sent.extend(frame);
        }
        for frame in [&long_head[..], &continuation, &data] {
            sent.extend(frame);
        }
        for piece_len in [1, 2, 5, 8, 9, 10, 24, 33, sent.len()] {
            let mut frames = Frames::new();
            let mut found = CostlyFrames::default();
            for piece in sent.chunks(piece_len) {
                let count = frames.count(piece);
                found.settings += count.settings;
                found.long_heads += count.long_heads;
            }
            let expected = CostlyFrames {
                settings: 2,
                long_heads: 1,
            };
            assert_eq!(found, expected, "in pieces of {piece_len}");
        }
    }
}

//! Values of Python in the form of its module `pickle`, protocol 2, as PyTorch writes them.

/// A value of Python.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PickleValue {
    /// `None`.
    None,
    /// A truth value.
    Bool(bool),
    /// An integer.
    Integer(i64),
    /// A string.
    Text(String),
    /// A list.
    List(Vec<PickleValue>),
    /// A tuple of two values.
    Pair(Box<[PickleValue; 2]>),
    /// A dictionary, whose keys are strings.
    Dictionary(Vec<(String, PickleValue)>),
}

impl PickleValue {
    /// Makes a string.
    pub fn text(text: &str) -> Self {
        Self::Text(text.to_owned())
    }

    /// Makes a list of integers. One that 63 bits cannot count becomes the largest.
    pub fn integers(numbers: &[u64]) -> Self {
        let integer = |number: &u64| Self::Integer(i64::try_from(*number).unwrap_or(i64::MAX));
        Self::List(numbers.iter().map(integer).collect())
    }

    /// Makes a dictionary of these keys and values.
    pub fn dictionary<const N: usize>(entries: [(&str, Self); N]) -> Self {
        Self::Dictionary(entries.map(|(key, value)| (key.to_owned(), value)).into())
    }

    /// Returns the value as a whole pickle.
    pub fn to_pickle(&self) -> Vec<u8> {
        // PROTO 2.
        let mut out = vec![0x80, 2];
        self.write_to(&mut out);
        // STOP.
        out.push(b'.');
        out
    }

    /// Appends the value to a pickle. Comments name the operations of Python's module `pickletools`.
    fn write_to(&self, out: &mut Vec<u8>) {
        match self {
            // NONE, NEWTRUE, NEWFALSE.
            Self::None => out.push(b'N'),
            Self::Bool(true) => out.push(0x88),
            Self::Bool(false) => out.push(0x89),
            Self::Integer(number) => {
                // LONG1, of 8 bytes.
                out.extend([0x8a, 8]);
                out.extend(number.to_le_bytes());
            }
            Self::Text(text) => write_pickle_text(text, out),
            Self::List(items) => {
                // EMPTY_LIST, MARK, APPENDS.
                out.extend(*b"](");
                items.iter().for_each(|item| item.write_to(out));
                out.push(b'e');
            }
            Self::Pair(both) => {
                both.iter().for_each(|item| item.write_to(out));
                // TUPLE2.
                out.push(0x86);
            }
            Self::Dictionary(entries) => {
                // EMPTY_DICT, MARK, SETITEMS.
                out.extend(*b"}(");
                for (key, value) in entries {
                    write_pickle_text(key, out);
                    value.write_to(out);
                }
                out.push(b'u');
            }
        }
    }
}

/// Appends a string to a pickle. One that 32 bits cannot count is cut.
fn write_pickle_text(text: &str, out: &mut Vec<u8>) {
    let text = &text[..text.floor_char_boundary(u32::MAX as usize)];
    // BINUNICODE.
    out.push(b'X');
    out.extend(u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_encoded_as_python_reads_them() {
        let value = PickleValue::dictionary([
            ("é", PickleValue::integers(&[1, u64::MAX])),
            ("pair", PickleValue::Pair(Box::new([PickleValue::None, PickleValue::text("")]))),
            ("flags", PickleValue::List(vec![PickleValue::Bool(true), PickleValue::Bool(false)])),
        ]);
        // `pickle.loads` returns {"é": [1, 2**63 - 1], "pair": (None, ""), "flags": [True, False]}.
        let wanted = b"\x80\x02}(X\x02\0\0\0\xc3\xa9](\x8a\x08\x01\0\0\0\0\0\0\0\
            \x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7feX\x04\0\0\0pairNX\0\0\0\0\x86\
            X\x05\0\0\0flags](\x88\x89eu.";
        assert_eq!(value.to_pickle(), wanted);
    }
}

//! Shape of the array that a rank posts, on which ranks must agree.

use crate::codec::{DecodeError, FieldReader, write_u64};

/// 8 dimensions: a message that holds an array's shape with more is refused as malformed. So
/// trainers hash a shape of more dimensions into the layout hash. The limit is chosen.
pub const DIMENSIONS_MAX: usize = 8;

/// Sizes of an array's dimensions, the outermost first.
///
/// Every array of one dimension has the shape [`ArrayShape::FLAT`]. Its size is the number of
/// elements, which stands beside the shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArrayShape {
    /// Number of dimensions, at most [`DIMENSIONS_MAX`].
    dimensions: usize,
    /// The sizes; zero behind the last dimension, and everywhere in a flat shape.
    sizes: [u64; DIMENSIONS_MAX],
}

impl ArrayShape {
    /// The shape of every array of one dimension, whatever its length. The size of that dimension
    /// is 0 here, since messages carry the number of elements in a field of its own.
    pub const FLAT: Self = Self { dimensions: 1, sizes: [0; DIMENSIONS_MAX] };

    /// Returns the shape of these sizes: [`ArrayShape::FLAT`] for one dimension, and `None` for
    /// more than [`DIMENSIONS_MAX`].
    pub fn new(sizes: &[u64]) -> Option<Self> {
        if sizes.len() == 1 {
            return Some(Self::FLAT);
        }
        let mut shape = Self { dimensions: sizes.len(), sizes: [0; DIMENSIONS_MAX] };
        shape.sizes.get_mut(..sizes.len())?.copy_from_slice(sizes);
        Some(shape)
    }

    /// Returns the size of each dimension of an array of this shape with `elements` elements.
    pub fn sizes(&self, elements: u64) -> Vec<u64> {
        if *self == Self::FLAT {
            return vec![elements];
        }
        self.sizes.iter().take(self.dimensions).copied().collect()
    }

    /// Returns the shape in the words of the array libraries: `()`, `(4,)`, `(2, 3)`.
    pub fn to_text(&self, elements: u64) -> String {
        let sizes: Vec<String> = self.sizes(elements).iter().map(u64::to_string).collect();
        match sizes.as_slice() {
            [one] => format!("({one},)"),
            several => format!("({})", several.join(", ")),
        }
    }

    /// Appends the shape of an array of `elements` elements to the message `out`: number of
    /// dimensions, sizes.
    pub fn write_to(&self, out: &mut Vec<u8>, elements: u64) {
        let sizes = self.sizes(elements);
        // At most `DIMENSIONS_MAX`.
        out.push(u8::try_from(sizes.len()).unwrap_or(u8::MAX));
        for size in sizes {
            write_u64(out, size);
        }
    }

    /// Reads the shape of an array of `elements` elements: number of dimensions, sizes.
    ///
    /// # Errors
    /// [`DecodeError`] when there are too many dimensions, an array of these sizes has another
    /// number of elements, or bytes are missing.
    pub fn read_from(reader: &mut FieldReader<'_>, elements: u64) -> Result<Self, DecodeError> {
        let dimensions = usize::from(reader.read_u8()?);
        let mut sizes = [0; DIMENSIONS_MAX];
        let listed = sizes.get_mut(..dimensions).ok_or(DecodeError::Invalid("shape"))?;
        for size in listed.iter_mut() {
            *size = reader.read_u64()?;
        }
        if array_shape_elements(listed) != Some(elements) {
            return Err(DecodeError::Invalid("shape"));
        }
        Self::new(listed).ok_or(DecodeError::Invalid("shape"))
    }
}

/// Returns the number of elements of an array of these sizes; `None` where 64 bits cannot count
/// them.
fn array_shape_elements(sizes: &[u64]) -> Option<u64> {
    if sizes.contains(&0) {
        return Some(0);
    }
    sizes.iter().try_fold(1u64, |count, size| count.checked_mul(*size))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the shape that the bytes of `sizes` decode to, beside `elements`.
    fn decoded(sizes: &[u64], elements: u64) -> Result<ArrayShape, DecodeError> {
        let mut bytes = vec![u8::try_from(sizes.len()).expect("few")];
        sizes.iter().for_each(|size| write_u64(&mut bytes, *size));
        let mut reader = FieldReader(&bytes);
        let shape = ArrayShape::read_from(&mut reader, elements)?;
        reader.check_end(shape)
    }

    #[test]
    fn shapes_survive_the_wire() {
        let shapes: [(&[u64], u64); 6] = [
            (&[], 1),
            (&[7], 7),
            (&[2, 3], 6),
            (&[1, 1, 1, 1, 1, 1, 1, 5], 5),
            (&[u64::MAX, u64::MAX, 0], 0),
            (&[u64::MAX], u64::MAX),
        ];
        for (sizes, elements) in shapes {
            let shape = ArrayShape::new(sizes).expect("few dimensions");
            assert_eq!(decoded(sizes, elements), Ok(shape), "{sizes:?}");
            assert_eq!(shape.sizes(elements), sizes);
            let mut bytes = Vec::new();
            shape.write_to(&mut bytes, elements);
            assert_eq!(bytes.len(), 1 + 8 * sizes.len());
        }
    }

    #[test]
    fn shapes_of_another_number_of_elements_are_refused() {
        let wrong: [(&[u64], u64); 5] = [
            (&[], 0),
            (&[7], 6),
            (&[2, 3], 5),
            (&[1 << 32, 1 << 32], 0),
            (&[1, 1, 1, 1, 1, 1, 1, 1, 1], 1),
        ];
        for (sizes, elements) in wrong {
            assert_eq!(decoded(sizes, elements), Err(DecodeError::Invalid("shape")), "{sizes:?}");
        }
    }

    #[test]
    fn texts_are_those_of_array_libraries() {
        let text = |sizes: &[u64], elements| ArrayShape::new(sizes).map(|s| s.to_text(elements));
        assert_eq!(text(&[], 1).as_deref(), Some("()"));
        assert_eq!(text(&[4], 4).as_deref(), Some("(4,)"));
        assert_eq!(text(&[2, 3], 6).as_deref(), Some("(2, 3)"));
        assert_eq!(text(&[1; 9], 1), None);
    }
}

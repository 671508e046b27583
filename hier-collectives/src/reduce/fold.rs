//! The loop of all reductions: operands are combined left to right, block by block.

use super::accumulator::{Accumulator, BitAccumulator, MeanAccumulator};
use super::element::Element;
use super::operand::Operand;
use std::mem::MaybeUninit;

/// 512 bytes of each operand: the block in which a reduction of three or more operands works, so
/// that hardware prefetching keeps up.
/// Tested by `cargo bench -p hier-collectives`.
const BLOCK_BYTES: usize = 512;

/// 512 elements: the most in one block of a reduction, reached by elements of one byte. Two arrays
/// hold an accumulator for each element of a block.
const BLOCK_ELEMENTS_MAX: usize = 512;

/// One call of [`super::reduce`].
#[derive(Clone, Copy)]
pub struct FoldPass<'a> {
    /// The output's first byte.
    pub out: *mut u8,
    /// The operands, left to right.
    pub operands: &'a [Operand],
    /// The first element to reduce.
    pub start: usize,
    /// One past the last element to reduce.
    pub elements: usize,
    /// Whether to use 256-bit vectors; only where [`folds_by_wide_vectors`] is true.
    pub wide: bool,
}

impl FoldPass<'_> {
    /// Returns the reduction from element `start` on.
    pub fn starting_at(self, start: usize) -> Self {
        Self { start, ..self }
    }
    /// Returns the reduction over whole groups of `lanes` elements, each group counted as one
    /// element.
    pub fn grouped(self, lanes: usize) -> Self {
        Self { elements: self.elements / lanes, ..self }
    }

    /// Returns the reduction over the bytes of elements of `size` bytes, each byte counted as one
    /// element.
    pub fn by_bytes(self, size: usize) -> Self {
        Self { start: self.start * size, elements: self.elements * size, ..self }
    }

    /// Combines all operands block by block with `operation` and writes the output.
    ///
    /// # Safety
    /// The conditions of [`super::reduce`] hold, and `E::Raw` is the dtype's form in memory.
    pub unsafe fn run_fold<E: Element, O: FoldOperation<E::Acc>>(self, operation: O) {
        let size = match self.operands.len() {
            0..=2 => self.elements.max(1),
            _ => BLOCK_ELEMENTS_MAX.min(BLOCK_BYTES / size_of::<E::Raw>()),
        };
        for start in (self.start..self.elements).step_by(size) {
            let count = size.min(self.elements - start);
            let block = Block { reduction: self, start, count };
            // SAFETY: the block lies within the reduction, whose ranges the caller vouches for.
            // AVX2 and F16C are there where `wide` is true.
            unsafe {
                #[cfg(target_arch = "x86_64")]
                if self.wide {
                    fold_block_avx2::<E, O>(block, operation);
                    continue;
                }
                fold_block::<E, O>(block, operation);
            }
        }
    }

    /// Writes the weighted mean of all operands to the output; NaN where the weights have no mean.
    ///
    /// # Safety
    /// The conditions of [`Self::run_fold`] hold.
    pub unsafe fn run_mean<E: Element<Acc: MeanAccumulator>>(self) {
        let total: f64 = self.operands.iter().map(|operand| operand.weight).sum();
        let weighted = self.operands.iter().all(|operand| can_fold_with_weight(operand.weight));
        if weighted && total > 0.0 && total.is_finite() {
            // SAFETY: the caller's promise is passed on.
            return unsafe { self.run_fold::<E, _>(MeanFold { total }) };
        }
        let out = self.out.cast::<E::Raw>();
        for index in self.start..self.elements {
            // SAFETY: `out` is writable for `elements` elements.
            unsafe { out.add(index).write_unaligned(E::encode_element(E::Acc::nan_accumulator())) };
        }
    }
}

/// Whether `weight` is finite and not negative, as an average needs it.
pub fn can_fold_with_weight(weight: f64) -> bool {
    weight.is_finite() && weight >= 0.0
}

/// Whether this machine has 256-bit vectors (AVX2) and half-float converters (F16C). They change
/// only the speed of a reduction.
pub fn folds_by_wide_vectors() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx2")
        && std::arch::is_x86_feature_detected!("f16c");
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

/// A combining operation on accumulators of type `A`.
pub trait FoldOperation<A>: Copy {
    /// Coefficient of an operand's values.
    type Coefficient: Copy;
    /// Returns the coefficient of an operand with this weight; `None` if the operand is left out.
    fn coefficient(self, weight: f64) -> Option<Self::Coefficient>;
    /// Returns the term that one value of an operand adds to the combination: the value times
    /// `coefficient`.
    fn term(value: A, coefficient: Self::Coefficient) -> A;
    /// Combines the accumulated value with the term to its right.
    fn combine(accumulated: A, term: A) -> A;
}

macro_rules! unweighted {
    ($bound:ident: $($name:ident, $method:ident;)*) => {$(
        #[derive(Clone, Copy)]
        pub struct $name;

        impl<A: $bound> FoldOperation<A> for $name {
            type Coefficient = ();
            /// Returns the unit: all operations but the mean ignore the weight of an operand.
            #[inline(always)]
            fn coefficient(self, _weight: f64) -> Option<()> {
                Some(())
            }
            /// Returns the value of an operand unchanged.
            #[inline(always)]
            fn term(value: A, (): ()) -> A {
                value
            }
            /// Combines the accumulated value with the term to its right by the operation of this
            /// name.
            #[inline(always)]
            fn combine(accumulated: A, term: A) -> A {
                accumulated.$method(term)
            }
        }
    )*};
}
unweighted! {
    Accumulator:
    Sum, add;
    Min, least;
    Max, greatest;
    Prod, mul;
}
unweighted! {
    BitAccumulator:
    Band, accumulate_and;
    Bor, accumulate_or;
    Bxor, accumulate_xor;
}

/// The weighted mean.
#[derive(Clone, Copy)]
struct MeanFold {
    /// The sum of all weights.
    total: f64,
}

impl<A: MeanAccumulator> FoldOperation<A> for MeanFold {
    type Coefficient = A;
    /// Returns the coefficient of an operand in the weighted mean; `None` for weight 0.
    #[inline(always)]
    fn coefficient(self, weight: f64) -> Option<A> {
        (weight > 0.0).then(|| A::accumulator_coefficient(weight, self.total))
    }
    /// Multiplies one value of an operand by the operand's coefficient.
    #[inline(always)]
    fn term(value: A, coefficient: A) -> A {
        value.accumulator_times(coefficient)
    }
    /// Adds the term to its right to the accumulated sum of the weighted mean.
    #[inline(always)]
    fn combine(accumulated: A, term: A) -> A {
        accumulated.accumulate_bounded(term)
    }
}

/// `count` elements of a reduction, from element `start` on.
#[derive(Clone, Copy)]
struct Block<'a> {
    reduction: FoldPass<'a>,
    start: usize,
    count: usize,
}

/// Combines one block as [`fold_block`] does, compiled for AVX2: wider vectors give equal bits.
///
/// # Safety
/// The conditions of [`fold_block`] hold, on a machine with AVX2 and F16C.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
unsafe fn fold_block_avx2<E: Element, O: FoldOperation<E::Acc>>(block: Block<'_>, operation: O) {
    // SAFETY: the caller's promise is passed on.
    unsafe { fold_block::<E, O>(block, operation) }
}

/// Combines one block of all operands, left to right, and writes its output.
///
/// # Safety
/// The block lies within its reduction, and `E::Raw` is the dtype's form in memory.
#[inline(always)]
unsafe fn fold_block<E: Element, O: FoldOperation<E::Acc>>(block: Block<'_>, operation: O) {
    let Block { reduction, start, count } = block;
    let out = FoldOutput::<E>(reduction.out.cast::<E::Raw>().wrapping_add(start));
    let mut terms = reduction.operands.iter().filter_map(|operand| {
        let values = operand.bytes.cast::<E::Raw>().wrapping_add(start);
        let coefficient = operation.coefficient(operand.weight)?;
        Some(FoldOperand::<E, O> { values, coefficient })
    });
    let Some(first) = terms.next() else {
        return debug_assert!(false, "a reduction needs an operand");
    };
    let Some(second) = terms.next() else {
        for i in 0..count {
            out.store(i, first.term_at(i));
        }
        return;
    };
    let Some(mut third) = terms.next() else {
        for i in 0..count {
            out.store(i, O::combine(first.term_at(i), second.term_at(i)));
        }
        return;
    };
    // Two buffers: in one buffer the compiler would emit masked stores, and the next pass would
    // stall on them.
    let mut buffers = [[const { MaybeUninit::<E::Acc>::uninit() }; BLOCK_ELEMENTS_MAX]; 2];
    let [from, to] = &mut buffers;
    let (mut from, mut to) = (&mut from[..count], &mut to[..count]);
    for (i, to) in from.iter_mut().enumerate() {
        to.write(O::combine(first.term_at(i), second.term_at(i)));
    }
    // SAFETY: the pass before wrote all of `from`.
    unsafe {
        loop {
            let Some(fourth) = terms.next() else {
                for (i, from) in from.iter().enumerate() {
                    out.store(i, O::combine(from.assume_init(), third.term_at(i)));
                }
                return;
            };
            let Some(fifth) = terms.next() else {
                for (i, from) in from.iter().enumerate() {
                    let folded = O::combine(from.assume_init(), third.term_at(i));
                    out.store(i, O::combine(folded, fourth.term_at(i)));
                }
                return;
            };
            for (i, (from, to)) in from.iter().zip(to.iter_mut()).enumerate() {
                let folded = O::combine(from.assume_init(), third.term_at(i));
                to.write(O::combine(folded, fourth.term_at(i)));
            }
            std::mem::swap(&mut from, &mut to);
            third = fifth;
        }
    }
}

/// One operand of a block.
struct FoldOperand<E: Element, O: FoldOperation<E::Acc>> {
    values: *const E::Raw,
    coefficient: O::Coefficient,
}

impl<E: Element, O: FoldOperation<E::Acc>> FoldOperand<E, O> {
    /// Reads element `index` of the operand in the block and returns its term.
    #[inline(always)]
    fn term_at(&self, index: usize) -> E::Acc {
        // SAFETY: only the fold that made this calls it, below its `count`.
        let raw = unsafe { self.values.add(index).read_unaligned() };
        O::term(E::decode_element(raw), self.coefficient)
    }
}

/// The output of a block.
struct FoldOutput<E: Element>(*mut E::Raw);

impl<E: Element> FoldOutput<E> {
    /// Writes `value` to element `index` of the output of the block.
    #[inline(always)]
    fn store(&self, index: usize, value: E::Acc) {
        // SAFETY: only the fold that made this calls it, below its `count`.
        unsafe { self.0.add(index).write_unaligned(E::encode_element(value)) }
    }
}

//! Matrix products in f32, in register tiles that the compiler turns into vector code.

/// A matrix in a slice.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    data: &'a [f32],
    rows: usize,
    columns: usize,
    /// Order of the elements in the slice.
    layout: Layout,
}

#[derive(Clone, Copy)]
enum Layout {
    RowMajor,
    ColumnMajor,
}

impl<'a> Matrix<'a> {
    /// Returns the matrix whose rows, of `columns` elements each, lie one after the other in
    /// `data`.
    pub(crate) fn new(data: &'a [f32], columns: usize) -> Self {
        assert!(data.len().is_multiple_of(columns), "whole rows");
        Self { data, rows: data.len() / columns, columns, layout: Layout::RowMajor }
    }

    /// Exchanges rows and columns, without a copy of the elements.
    pub(crate) fn transposed(self) -> Self {
        Self {
            data: self.data,
            rows: self.columns,
            columns: self.rows,
            layout: match self.layout {
                Layout::RowMajor => Layout::ColumnMajor,
                Layout::ColumnMajor => Layout::RowMajor,
            },
        }
    }
}

/// Writes the matrix product `a` times `b` to `out`, row by row. Each element is the sum of its
/// products in ascending order, so equal rows of `a` give equal bits whatever the other rows are.
pub(crate) fn multiply_matrices(a: Matrix<'_>, b: Matrix<'_>, out: &mut [f32]) {
    assert_eq!(a.columns, b.rows, "inner lengths");
    assert_eq!(out.len(), a.rows * b.columns, "elements of the product");
    let row_panels: Vec<_> = (0..a.rows)
        .step_by(TILE_ROWS)
        .map(|first| (first, pack_matrix_columns::<TILE_ROWS>(a.transposed(), first)))
        .collect();
    for first_column in (0..b.columns).step_by(TILE_COLUMNS) {
        let columns = first_column..b.columns.min(first_column + TILE_COLUMNS);
        let column_panel = pack_matrix_columns::<TILE_COLUMNS>(b, first_column);
        for (first_row, row_panel) in &row_panels {
            let tile = multiply_matrix_panels(row_panel, &column_panel);
            for (row, sums) in (*first_row..a.rows).zip(&tile) {
                let start = row * b.columns + first_column;
                out[start..start + columns.len()].copy_from_slice(&sums[..columns.len()]);
            }
        }
    }
}

/// Copies columns `first` to `first + N - 1` of `b`: one array of `N` elements for each row, with
/// zeros beyond the last column.
fn pack_matrix_columns<const N: usize>(b: Matrix<'_>, first: usize) -> Vec<[f32; N]> {
    let columns = N.min(b.columns - first);
    let mut panel = vec![[0.0; N]; b.rows];
    match b.layout {
        Layout::RowMajor => {
            for (packed, row) in panel.iter_mut().zip(b.data.chunks_exact(b.columns)) {
                packed[..columns].copy_from_slice(&row[first..first + columns]);
            }
        }
        Layout::ColumnMajor => {
            for index in 0..columns {
                let column = &b.data[(first + index) * b.rows..][..b.rows];
                for (packed, element) in panel.iter_mut().zip(column) {
                    packed[index] = *element;
                }
            }
        }
    }
    panel
}

/// Multiplies a panel of packed rows by a panel of packed columns. Returns one tile of the product.
fn multiply_matrix_panels(
    rows: &[[f32; TILE_ROWS]],
    columns: &[[f32; TILE_COLUMNS]],
) -> [[f32; TILE_COLUMNS]; TILE_ROWS] {
    let mut sums = [[0.0; TILE_COLUMNS]; TILE_ROWS];
    for (left, right) in rows.iter().zip(columns) {
        // Indices, not zipped iterators: those are calls where no link-time optimisation inlines them.
        for (row, sums) in sums.iter_mut().enumerate() {
            for (column, sum) in sums.iter_mut().enumerate() {
                *sum += left[row] * right[column];
            }
        }
    }
    sums
}

/// 4 rows: the height of a tile of a matrix product. With [`TILE_COLUMNS`], the sums of a tile fill
/// 8 of the 16 vector registers of x86-64.
const TILE_ROWS: usize = 4;
/// 8 columns: the width of a tile of a matrix product, two vector registers of four f32 for each
/// row.
const TILE_COLUMNS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    impl Matrix<'_> {
        fn at(&self, row: usize, column: usize) -> f32 {
            match self.layout {
                Layout::RowMajor => self.data[row * self.columns + column],
                Layout::ColumnMajor => self.data[column * self.rows + row],
            }
        }
    }

    fn naive(a: Matrix<'_>, b: Matrix<'_>) -> Vec<f32> {
        let cells = (0..a.rows).flat_map(|r| (0..b.columns).map(move |c| (r, c)));
        cells.map(|(r, c)| (0..a.columns).map(|k| a.at(r, k) * b.at(k, c)).sum()).collect()
    }

    #[test]
    fn products_equal_a_plain_triple_loop_in_every_layout() {
        let mut rng = Rng::new(1);
        let mut random = |n: usize| -> Vec<f32> { (0..n).map(|_| rng.signed_unit()).collect() };
        for (rows, inner, columns) in [(1, 1, 1), (4, 3, 8), (5, 7, 9), (43, 10, 13), (0, 3, 2)] {
            let (a, b) = (random(rows * inner), random(inner * columns));
            let (at, bt) = (random(rows * inner), random(inner * columns));
            let a_forms = [Matrix::new(&a, inner), column_major(&at, rows, inner)];
            let b_forms = [Matrix::new(&b, columns), column_major(&bt, inner, columns)];
            for (a, b) in a_forms.into_iter().flat_map(|a| b_forms.map(|b| (a, b))) {
                let mut out = vec![f32::NAN; rows * columns];
                multiply_matrices(a, b, &mut out);
                assert_eq!(out, naive(a, b), "{rows} x {inner} x {columns}");
            }
        }
    }

    /// Returns a `rows` by `columns` matrix whose columns lie one after the other in `data`.
    fn column_major(data: &[f32], rows: usize, columns: usize) -> Matrix<'_> {
        if rows == 0 {
            return Matrix::new(data, columns);
        }
        let matrix = Matrix::new(data, rows).transposed();
        assert_eq!(matrix.columns, columns);
        matrix
    }
}

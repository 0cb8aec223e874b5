//! Where a file keeps a weight: under which name, in which rows, and in which order.

/// The place of a weight in a file. Rows are those of the matrix `[out, in]`; of a vector, its elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// The tensor's name, ending in `.weight`.
    pub(crate) name: String,
    pub(crate) rows: RowOrder,
    /// Whether the tensor is `[in, out]`.
    pub(crate) transposed: bool,
    /// Whether the file has the values minus 1.
    pub(super) plus_one: bool,
}

/// The rows of a tensor that belong to the weight, and their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowOrder {
    /// All, in order.
    All,
    /// Those from `first` on, of `of`.
    From { first: usize, of: usize },
    /// All; within each of `heads` heads in the order (2i, 2i+1) instead of (i, i + head_dim/2).
    InPairs { heads: usize },
    /// Of each head, one of `parts` runs of `head_dim` rows.
    OfEachHead { part: usize, parts: usize, head_dim: usize },
}

impl Place {
    /// A tensor as it is.
    pub(crate) fn whole(name: impl Into<String>) -> Self {
        Self { name: name.into(), rows: RowOrder::All, transposed: false, plus_one: false }
    }

    /// A part of a tensor of `of` rows.
    pub(crate) fn rows_from(self, first: usize, of: usize) -> Self {
        Self { rows: RowOrder::From { first, of }, ..self }
    }

    /// Rows that llama.cpp's converter has reordered.
    pub(crate) fn in_pairs(self, heads: usize) -> Self {
        Self { rows: RowOrder::InPairs { heads }, ..self }
    }

    /// One of several runs of rows that each head has.
    pub(crate) fn of_each_head(self, part: usize, parts: usize, head_dim: usize) -> Self {
        Self { rows: RowOrder::OfEachHead { part, parts, head_dim }, ..self }
    }

    /// A matrix that the file has transposed.
    pub(crate) fn transposed(self) -> Self {
        Self { transposed: true, ..self }
    }

    /// Values that the file has minus 1.
    pub(crate) fn plus_one(self) -> Self {
        Self { plus_one: true, ..self }
    }

    /// The bias that goes with a matrix or norm: its rows are in the same order.
    pub(super) fn bias(self) -> Self {
        let stem = self.name.strip_suffix(".weight").unwrap_or(&self.name);
        Self { name: format!("{stem}.bias"), transposed: false, plus_one: false, ..self }
    }
}

impl RowOrder {
    /// How many rows the tensor has where the weight has `rows` of them.
    pub(crate) fn of(self, rows: usize) -> usize {
        match self {
            Self::All | Self::InPairs { .. } => rows,
            Self::From { of, .. } => of,
            Self::OfEachHead { parts, .. } => rows * parts,
        }
    }

    /// The first of `rows` rows that follow each other in the tensor; `None` where they don't.
    pub(super) fn start(self) -> Option<usize> {
        match self {
            Self::All => Some(0),
            Self::From { first, .. } => Some(first),
            Self::InPairs { .. } | Self::OfEachHead { .. } => None,
        }
    }

    /// The tensor's row that is row `row` of the weight's `rows`.
    pub(crate) fn source(self, row: usize, rows: usize) -> usize {
        match self {
            Self::All => row,
            Self::From { first, .. } => first + row,
            Self::InPairs { heads } => {
                let head_dim = rows / heads;
                let (head, i) = (row / head_dim, row % head_dim);
                let (half, pair) = (i / (head_dim / 2), i % (head_dim / 2));
                head * head_dim + 2 * pair + half
            }
            Self::OfEachHead { part, parts, head_dim } => {
                let (head, i) = (row / head_dim, row % head_dim);
                (head * parts + part) * head_dim + i
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_out_in_rotate_half_order() {
        // Two heads of six rows.
        let rows: Vec<usize> = (0..12).map(|row| RowOrder::InPairs { heads: 2 }.source(row, 12)).collect();
        assert_eq!(rows, [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]);
    }

    #[test]
    fn parts_of_heads_are_gathered() {
        let keys = RowOrder::OfEachHead { part: 1, parts: 3, head_dim: 2 };
        let rows: Vec<usize> = (0..4).map(|row| keys.source(row, 4)).collect();
        assert_eq!((rows.as_slice(), keys.of(4)), ([2, 3, 8, 9].as_slice(), 12));
    }

    #[test]
    fn a_bias_lies_beside_its_matrix() {
        let place = Place::whole("h.0.attn.c_attn.weight").rows_from(4, 12).transposed().bias();
        assert_eq!((place.name.as_str(), place.transposed), ("h.0.attn.c_attn.bias", false));
        assert_eq!(place.rows, RowOrder::From { first: 4, of: 12 });
    }
}

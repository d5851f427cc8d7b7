//! Columns whose rows are all equal, which need not be decoded.

use parquet::file::statistics::Statistics;

/// Values that can be taken from a row group's statistics if all rows are equal.
pub(super) trait Constant: Sized {
    fn constant(statistics: &Statistics) -> Option<Self>;
}

impl Constant for i32 {
    fn constant(statistics: &Statistics) -> Option<Self> {
        let Statistics::Int32(values) = statistics else {
            return None;
        };
        values
            .max_opt()
            .filter(|max| values.min_opt() == Some(max))
            .copied()
    }
}

impl Constant for i64 {
    fn constant(statistics: &Statistics) -> Option<Self> {
        let Statistics::Int64(values) = statistics else {
            return None;
        };
        values
            .max_opt()
            .filter(|max| values.min_opt() == Some(max))
            .copied()
    }
}

impl Constant for f32 {
    fn constant(statistics: &Statistics) -> Option<Self> {
        let Statistics::Float(values) = statistics else {
            return None;
        };
        values
            .max_opt()
            .filter(|max| values.min_opt() == Some(max))
            .copied()
    }
}

impl Constant for bool {
    fn constant(_: &Statistics) -> Option<Self> {
        None
    }
}

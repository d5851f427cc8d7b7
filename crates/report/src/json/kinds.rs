//! Accesses by kind of object.

use nearpage_attribution::Totals;
use schemars::JsonSchema;
use serde::Serialize;

use super::rounded::whole_parts;

/// Accesses by kind of object.
#[derive(Serialize, JsonSchema)]
pub(super) struct Kinds {
    /// Heap objects.
    heap: u64,
    /// Heap memory outside all logged objects.
    heap_unresolved: u64,
    /// Static objects.
    r#static: u64,
    /// Mappings.
    mapping: u64,
    /// Stacks.
    stack: u64,
    /// Thread-local storage.
    tls: u64,
    /// Code.
    code: u64,
    /// Unknown memory.
    unknown: u64,
}

impl Kinds {
    /// The number of all accesses, and those of each kind, which add up to it.
    pub fn of(totals: &Totals) -> (u64, Self) {
        let kinds = [
            totals.heap,
            totals.heap_unresolved,
            totals.statics,
            totals.mapping,
            totals.stack,
            totals.tls,
            totals.code,
            totals.unknown,
        ];
        let [
            heap,
            heap_unresolved,
            r#static,
            mapping,
            stack,
            tls,
            code,
            unknown,
        ] = whole_parts(kinds);
        let of_kinds = Self {
            heap,
            heap_unresolved,
            r#static,
            mapping,
            stack,
            tls,
            code,
            unknown,
        };
        (kinds.iter().sum::<f64>().round() as u64, of_kinds)
    }
}

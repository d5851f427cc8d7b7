//! JSON of one object.

use nearpage_attribution::{Attribution, Names, ObjectGroup};
use nearpage_recording::Tables;

use super::object;
use crate::{GroupBy, Locate};

/// The row that [`json`](crate::json()) writes for the object at a position in the attribution, without the confidence
/// of its pattern; `None` if there is no such object.
pub fn object_json(
    attribution: &Attribution,
    tables: &Tables,
    position: usize,
    locate: &mut impl Locate,
) -> Option<String> {
    let group = attribution.objects.get(position)?;
    let names = Names::new(tables, &attribution.objects);
    let all_cost: f64 = attribution.objects.iter().map(ObjectGroup::cost_ns).sum();
    let row = object(tables, &names, group, (all_cost, GroupBy::Object), locate);
    Some(serde_json::to_string(&row).expect("strings, numbers and maps with numbers for keys"))
}

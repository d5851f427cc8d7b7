//! One object's row.

use nearpage_attribution::{Attribution, Names, ObjectGroup};
use nearpage_recording::Tables;

use super::object;
use crate::{GroupBy, Locate};

/// The row that [`json`](crate::json()) has of the object at a position of the attribution's, but for how sure its pattern
/// is; none where there is no such object.
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

//! Which objects are one row: those of one call site or symbol.

use nearpage_recording::{CallSiteId, Object, ObjectKind};
use rustc_hash::FxHashMap;

use crate::ObjectName;

/// A call site whose largest object is so many times its smallest is split by size class.
const SIZES_DIFFER_WILDLY: u64 = 64;

/// Objects that are not alone in their group and are followed one by one, at most.
const FOLLOWED_MAX: usize = 1 << 13;

/// Up to so many objects of one call site, each at least so large, are told from each other.
const SIBLINGS_MAX: f64 = 64.0;
const SIBLING_BYTES_MIN: u64 = 1 << 18;

/// One row to be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Group {
    pub kind: ObjectKind,
    pub name: ObjectName,
    pub size_bytes: u64,
    pub instances: f64,
    /// One of the objects.
    pub first: u32,
    /// There is no other.
    pub is_only: bool,
    /// It is one of a few large objects of this group.
    pub parent: Option<u32>,
}

/// All rows, and who is in which.
#[derive(Debug)]
pub(crate) struct Groups {
    pub groups: Vec<Group>,
    /// Group of each object.
    pub of_object: Vec<u32>,
    /// A bit for each object: is it followed by itself? Looked up for every access.
    followed: Vec<u64>,
}

/// What no logged object explains of the heap that `brk` extends.
pub const IN_BRK_HEAP: &str = "heap, outside logged objects";
/// The same of memory that allocators map.
const IN_ARENAS: &str = "arenas, outside logged objects";

/// What decides about the group; names are compared by reference.
#[derive(PartialEq, Eq, Hash)]
enum Key<'a> {
    CallSite(ObjectKind, CallSiteId, u32),
    /// By name, too: a section may begin where its first symbol does, and a segment where its first section does.
    Symbol(u32, u64, &'a str),
    Named(ObjectKind, &'a str),
}

impl Groups {
    pub fn new(objects: &[Object]) -> Groups {
        let mut sizes: FxHashMap<(ObjectKind, CallSiteId), (u64, u64)> = FxHashMap::default();
        for object in objects {
            if let Some(site) = object.call_site {
                let (least, most) = sizes.entry((object.kind, site)).or_insert((u64::MAX, 0));
                *least = object.size_bytes.max(1).min(*least);
                *most = object.size_bytes.max(*most);
            }
        }
        let mut numbers: FxHashMap<Key, u32> = FxHashMap::default();
        let mut groups: Vec<Group> = Vec::new();
        let mut of_object = Vec::with_capacity(objects.len());
        for (id, object) in objects.iter().enumerate() {
            let key = match (object.kind, object.call_site, object.module) {
                (kind @ (ObjectKind::Heap | ObjectKind::Mapping), Some(site), _) => {
                    let (least, most) = sizes[&(kind, site)];
                    let wild = most / least >= SIZES_DIFFER_WILDLY;
                    // Classes of a factor 16: … 16 KiB, 256 KiB, 4 MiB …
                    let class = if wild {
                        (object.size_bytes.max(1).ilog2() + 2) / 4
                    } else {
                        u32::MAX
                    };
                    Key::CallSite(kind, site, class)
                }
                (ObjectKind::Static, _, Some(module)) => {
                    Key::Symbol(module.0, object.module_offset, &object.name)
                }
                (ObjectKind::Heap, ..) => Key::Named(object.kind, "heap, call site not recorded"),
                (ObjectKind::HeapArea, ..) => {
                    let name = match object.is_brk_heap() {
                        true => IN_BRK_HEAP,
                        false => IN_ARENAS,
                    };
                    Key::Named(object.kind, name)
                }
                (ObjectKind::Stack, ..) => Key::Named(object.kind, "stack"),
                (ObjectKind::Tls, ..) => Key::Named(object.kind, "thread-local storage"),
                (kind, ..) => Key::Named(kind, &object.name),
            };
            let number = *numbers.entry(key).or_insert_with_key(|key| {
                let name = match *key {
                    Key::CallSite(_, site, _) => ObjectName::CallSite(site),
                    Key::Symbol(..) => ObjectName::Symbol(
                        object.module.expect("symbols have a module"),
                        object.module_offset,
                    ),
                    Key::Named(_, name) => ObjectName::Other(name.to_owned()),
                };
                groups.push(Group {
                    kind: object.kind,
                    name,
                    size_bytes: 0,
                    instances: 0.0,
                    first: id as u32,
                    is_only: true,
                    parent: None,
                });
                groups.len() as u32 - 1
            });
            let group = &mut groups[number as usize];
            group.size_bytes = group.size_bytes.max(object.size_bytes);
            group.instances += f64::from(object.weight);
            group.is_only &= group.first == id as u32;
            of_object.push(number);
        }
        let followed = follow(objects, &groups, &of_object);
        Groups {
            groups,
            of_object,
            followed,
        }
    }

    /// The same with a group of its own for each of a few large objects of one call site.
    pub fn with_siblings(objects: &[Object]) -> Groups {
        let mut all = Self::new(objects);
        let mut smallest: FxHashMap<u32, u64> = FxHashMap::default();
        for (object, &group) in objects.iter().zip(&all.of_object) {
            let least = smallest.entry(group).or_insert(u64::MAX);
            *least = object.size_bytes.min(*least);
        }
        for (id, object) in objects.iter().enumerate() {
            let number = all.of_object[id];
            let group = &all.groups[number as usize];
            let is_one = matches!(group.name, ObjectName::CallSite(_))
                && !group.is_only
                && group.instances <= SIBLINGS_MAX
                && smallest[&number] >= SIBLING_BYTES_MIN;
            if is_one {
                all.of_object[id] = all.groups.len() as u32;
                all.groups.push(Group {
                    size_bytes: object.size_bytes,
                    instances: f64::from(object.weight),
                    first: id as u32,
                    is_only: true,
                    parent: Some(number),
                    ..group.clone()
                });
            }
        }
        all.followed = follow(objects, &all.groups, &all.of_object);
        all
    }

    /// Is the object followed by itself?
    #[inline]
    pub fn follows(&self, object: u32) -> bool {
        self.followed[object as usize / 64] >> (object % 64) & 1 == 1
    }
}

/// The largest of the objects that are not alone.
fn follow(objects: &[Object], groups: &[Group], of_object: &[u32]) -> Vec<u64> {
    let mut candidates: Vec<u32> = (0..objects.len() as u32)
        .filter(|&id| {
            let group = &groups[of_object[id as usize] as usize];
            (!group.is_only || group.parent.is_some())
                && matches!(
                    group.kind,
                    ObjectKind::Heap | ObjectKind::Mapping | ObjectKind::Static
                )
        })
        .collect();
    if candidates.len() > FOLLOWED_MAX {
        // Of equally large ones, some from everywhere: whose they are may change along the way.
        let scattered = |id: u32| id.wrapping_mul(0x9E37_79B1);
        let largest_first = |&id: &u32| {
            let size_bytes = objects[id as usize].size_bytes;
            (std::cmp::Reverse(size_bytes), scattered(id))
        };
        candidates.select_nth_unstable_by_key(FOLLOWED_MAX, largest_first);
        candidates.truncate(FOLLOWED_MAX);
    }
    let mut followed = vec![0; objects.len().div_ceil(64)];
    for id in candidates {
        followed[id as usize / 64] |= 1 << (id % 64);
    }
    followed
}

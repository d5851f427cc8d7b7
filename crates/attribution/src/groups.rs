//! Groups objects of one call site or symbol.

use nearpage_recording::{CallSiteId, Object, ObjectKind};
use rustc_hash::FxHashMap;

use crate::ObjectName;

/// Ratio of largest to smallest object from which a call site is split by size class.
const SIZES_DIFFER_WILDLY: u64 = 64;

/// Largest number of objects that share a group and are still followed one by one.
const FOLLOWED_MAX: usize = 1 << 13;

/// A call site with at most this many objects, each of at least `SIBLING_BYTES_MIN`, has a group per object.
const SIBLINGS_MAX: f64 = 64.0;
const SIBLING_BYTES_MIN: u64 = 1 << 18;

/// A group of objects, before their accesses are added up.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Group {
    pub kind: ObjectKind,
    pub name: ObjectName,
    pub size_bytes: u64,
    pub instances: f64,
    /// Number of the group's first object.
    pub first: u32,
    /// Whether the group has no other object.
    pub is_only: bool,
    /// Whether several processes have mapped an object of the group.
    pub is_shared_memory: bool,
    /// Number of the call site's group, where this group has one of its few large objects.
    pub parent: Option<u32>,
}

/// All groups, and the group of each object.
#[derive(Debug)]
pub(crate) struct Groups {
    pub groups: Vec<Group>,
    /// Group of each object.
    pub of_object: Vec<u32>,
    /// Bit set of the objects that are followed one by one; every access looks up its object here.
    followed: Vec<u64>,
}

/// Group of the heap memory from `brk` that lies outside logged objects.
pub const IN_BRK_HEAP: &str = "heap, outside logged objects";
/// Group of memory that allocators map, outside logged objects.
const IN_ARENAS: &str = "arenas, outside logged objects";

/// Key by which objects are grouped.
#[derive(PartialEq, Eq, Hash)]
enum Key<'a> {
    CallSite(ObjectKind, CallSiteId, u32),
    /// The name is needed, too: a section may begin at its first symbol, and a segment at its first section.
    Symbol(u32, u64, &'a str),
    Named(ObjectKind, &'a str),
}

impl Groups {
    pub fn new(objects: &[Object]) -> Groups {
        let mut sizes: FxHashMap<(ObjectKind, CallSiteId), (u64, u64)> = FxHashMap::default();
        for (_, object) in standing(objects) {
            if let Some(site) = object.call_site {
                let (least, most) = sizes.entry((object.kind, site)).or_insert((u64::MAX, 0));
                *least = object.size_bytes.max(1).min(*least);
                *most = object.size_bytes.max(*most);
            }
        }
        let mut numbers: FxHashMap<Key, u32> = FxHashMap::default();
        let mut groups: Vec<Group> = Vec::new();
        let mut of_object = vec![0; objects.len()];
        for (id, object) in standing(objects) {
            let key = match (object.kind, object.call_site, object.module) {
                (kind @ (ObjectKind::Heap | ObjectKind::Mapping), Some(site), _) => {
                    let (least, most) = sizes[&(kind, site)];
                    let wild = most / least >= SIZES_DIFFER_WILDLY;
                    // Upper bounds of the size classes grow by a factor of 16: … 16 KiB, 256 KiB, 4 MiB …
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
                    is_shared_memory: false,
                    parent: None,
                });
                groups.len() as u32 - 1
            });
            let group = &mut groups[number as usize];
            group.size_bytes = group.size_bytes.max(object.size_bytes);
            group.instances += f64::from(object.weight);
            group.is_only &= group.first == id as u32;
            of_object[id] = number;
        }
        join(objects, &mut groups, &mut of_object);
        let followed = follow(objects, &groups, &of_object);
        Groups {
            groups,
            of_object,
            followed,
        }
    }

    /// Groups in which each of a few large objects of one call site has its own group.
    pub fn with_siblings(objects: &[Object]) -> Groups {
        let mut all = Self::new(objects);
        let mut smallest: FxHashMap<u32, u64> = FxHashMap::default();
        for (id, object) in standing(objects) {
            let least = smallest.entry(all.of_object[id]).or_insert(u64::MAX);
            *least = object.size_bytes.min(*least);
        }
        for (id, object) in standing(objects) {
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
        join(objects, &mut all.groups, &mut all.of_object);
        all.followed = follow(objects, &all.groups, &all.of_object);
        all
    }

    /// Whether the object is followed one by one.
    #[inline]
    pub fn follows(&self, object: u32) -> bool {
        self.followed[object as usize / 64] >> (object % 64) & 1 == 1
    }
}

/// Numbers and objects, without those for which the object of another process stands.
fn standing(objects: &[Object]) -> impl Iterator<Item = (usize, &Object)> {
    let numbered = objects.iter().enumerate();
    numbered.filter(|(_, object)| object.same_memory_as.is_none())
}

/// Puts objects that are the same memory into one group.
fn join(objects: &[Object], groups: &mut [Group], of_object: &mut [u32]) {
    for (id, object) in objects.iter().enumerate() {
        if let Some(same) = object.same_memory_as {
            of_object[id] = of_object[same.0 as usize];
            groups[of_object[id] as usize].is_shared_memory = true;
        }
    }
}

/// Bit set of the largest objects that share their group, or that have a parent group.
fn follow(objects: &[Object], groups: &[Group], of_object: &[u32]) -> Vec<u64> {
    let mut candidates: Vec<u32> = standing(objects)
        .map(|(id, _)| id as u32)
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
        // Among equally large objects, a scattered selection: the owner may change with the object's number.
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

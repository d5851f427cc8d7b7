//! A line of `/proc/PID/maps` (proc(5)).

/// A line of a maps file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping<'a> {
    /// First byte and the one beyond, which is greater.
    pub range: (u64, u64),
    /// Bits as `mmap` takes them.
    pub protection: u32,
    /// `MAP_SHARED` or `MAP_PRIVATE`.
    pub flags: u32,
    /// Offset in the file.
    pub offset: u64,
    /// `st_dev`.
    pub device: u64,
    /// Inode.
    pub inode: u64,
    /// Path, or a name in brackets, or nothing.
    pub path: &'a [u8],
}

/// Parses a line of a maps file.
pub fn mapping(line: &[u8]) -> Option<Mapping<'_>> {
    let mut words = line.splitn(6, |byte| *byte == b' ');
    let mut word = || words.next().and_then(|word| str::from_utf8(word).ok());
    let hexadecimal = |text: &str| u64::from_str_radix(text, 16).ok();
    let (first, end) = word()?.split_once('-')?;
    let letters = word()?.as_bytes();
    let offset = hexadecimal(word()?)?;
    let (major, minor) = word()?.split_once(':')?;
    let inode = word()?.parse().ok()?;
    let (major, minor) = (hexadecimal(major)?, hexadecimal(minor)?);
    let bit = |place: usize, letter: u8, bit: u32| {
        if letters.get(place) == Some(&letter) {
            bit
        } else {
            0
        }
    };
    let (first, end) = (hexadecimal(first)?, hexadecimal(end)?);
    (first < end).then_some(Mapping {
        range: (first, end),
        protection: bit(0, b'r', 1) | bit(1, b'w', 2) | bit(2, b'x', 4),
        flags: if bit(3, b's', 1) == 1 { 1 } else { 2 },
        offset,
        // makedev of the C library.
        device: (major & 0xffff_f000) << 32
            | (major & 0xfff) << 8
            | (minor & 0xffff_ff00) << 12
            | minor & 0xff,
        inode,
        path: words.next().unwrap_or_default().trim_ascii_start(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_maps_file() {
        let line = b"4000801000-4000805000 r-xp 00001000 fe:01 1704067                    /a b/x";
        let expected = Mapping {
            range: (0x40_0080_1000, 0x40_0080_5000),
            protection: 5,
            flags: 2,
            offset: 0x1000,
            device: 0xfe01,
            inode: 1_704_067,
            path: b"/a b/x",
        };
        assert_eq!(mapping(line), Some(expected));
        let anonymous = mapping(b"7f0000000000-7f0000001000 rw-s 00000000 00:00 0 ");
        assert_eq!(
            anonymous.map(|mapping| (mapping.path, mapping.flags)),
            Some((&b""[..], 1))
        );
        assert_eq!(mapping(b""), None);
        assert_eq!(mapping(b"7f-80 rw"), None);
        // Backwards.
        assert!(mapping(b"7f-80 rw-p 00000000 00:00 0 ").is_some());
        assert_eq!(mapping(b"80-7f rw-p 00000000 00:00 0 "), None);
    }
}

//! System calls about files.

use super::{EFBIG, EINTR, Errno, RESOURCE_FILE_BYTES, call, number, resource_limit};

/// `O_RDONLY`.
pub const O_RDONLY: usize = 0;
/// `O_WRONLY`.
pub const O_WRONLY: usize = 1;
/// `O_RDWR`.
pub const O_RDWR: usize = 2;
/// `O_CREAT`.
pub const O_CREAT: usize = 0o100;
/// `O_EXCL`.
pub const O_EXCL: usize = 0o200;
/// `O_TRUNC`.
pub const O_TRUNC: usize = 0o1000;
/// `O_APPEND`.
pub const O_APPEND: usize = 0o2000;
/// `O_CLOEXEC`.
pub const O_CLOEXEC: usize = 0o2000000;
/// `O_NONBLOCK`.
pub const O_NONBLOCK: usize = 0o4000;
/// `AT_FDCWD`.
pub const AT_FDCWD: usize = -100isize as usize;

/// Opens `path`, which ends in a zero byte. Flags are or-ed with `O_CLOEXEC`; new files are 0600.
pub fn open(path: &[u8], flags: usize) -> Result<usize, Errno> {
    open_at(AT_FDCWD, path, flags)
}

/// Opens a file by its path relative to a folder's descriptor.
pub fn open_at(folder: usize, path: &[u8], flags: usize) -> Result<usize, Errno> {
    debug_assert!(path.last() == Some(&0));
    // SAFETY: the path is readable and terminated.
    unsafe {
        call(
            number::OPENAT,
            [
                folder,
                path.as_ptr() as usize,
                flags | O_CLOEXEC,
                0o600,
                0,
                0,
            ],
        )
    }
}

/// The target of a symbolic link, whose path ends in a zero byte. Returns the number of bytes.
pub fn readlink(path: &[u8], buffer: &mut [u8]) -> Result<usize, Errno> {
    debug_assert!(path.last() == Some(&0));
    // SAFETY: the path is readable and terminated, the buffer writable for its length.
    unsafe {
        call(
            number::READLINKAT,
            [
                AT_FDCWD,
                path.as_ptr() as usize,
                buffer.as_mut_ptr() as usize,
                buffer.len(),
                0,
                0,
            ],
        )
    }
}

/// The ids of this process and thread in the PID namespace whose `/proc` is mounted. They differ from the process's own
/// view if it is in a nested namespace without a `/proc` of its own.
pub fn outside_numbers() -> Option<[u32; 2]> {
    let mut buffer = [0; 64];
    let length = readlink(b"/proc/thread-self\0", &mut buffer).ok()?;
    // PID/task/TID
    let mut parts = buffer.get(..length)?.split(|byte| *byte == b'/');
    let number = |digits: &[u8]| core::str::from_utf8(digits).ok()?.parse().ok();
    Some([number(parts.next()?)?, number(parts.nth(1)?)?])
}

/// Closes a descriptor that this library opened.
pub fn close(fd: usize) {
    // SAFETY: no memory is involved.
    let _ = unsafe { call(number::CLOSE, [fd, 0, 0, 0, 0, 0]) };
}

/// Reads a file of `/proc` or `/sys`, up to the size of the buffer.
pub fn read_text<'a>(path: &[u8], buffer: &'a mut [u8]) -> Result<&'a [u8], Errno> {
    let file = open(path, O_RDONLY)?;
    let length = read(file, buffer);
    close(file);
    Ok(buffer.get(..length?).unwrap_or_default())
}

/// Reads into `buffer`; returns the number of bytes, 0 at the end.
pub fn read(fd: usize, buffer: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY: the buffer is writable for its length.
    unsafe {
        call(
            number::READ,
            [fd, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0],
        )
    }
}

/// Reads into `buffer` from `offset` on; returns the number of bytes, 0 at the end.
pub fn read_at(fd: usize, buffer: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let [address, bytes] = [buffer.as_mut_ptr() as usize, buffer.len()];
    // SAFETY: the buffer is writable for its length.
    unsafe { call(number::PREAD64, [fd, address, bytes, offset as usize, 0, 0]) }
}

/// Writes all of `bytes`, in several calls if needed. Returns `EFBIG` if that might exceed the file size limit:
/// the write would send the program a SIGXFSZ.
pub fn write(fd: usize, mut bytes: &[u8]) -> Result<(), Errno> {
    if !may_grow(fd, bytes.len())? {
        return Err(EFBIG);
    }
    while !bytes.is_empty() {
        // SAFETY: the slice is readable for its length.
        match unsafe {
            call(
                number::WRITE,
                [fd, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0],
            )
        } {
            Ok(0) => return Err(Errno(5)),
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(EINTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Can `bytes` be written to this descriptor within the file size limit, even if other processes append to the file
/// meanwhile?
fn may_grow(fd: usize, bytes: usize) -> Result<bool, Errno> {
    const SEEK_CUR: usize = 1;
    const OTHERS_BYTES: u64 = 64 << 10;
    let limit = resource_limit(RESOURCE_FILE_BYTES)?;
    if limit == u64::MAX {
        return Ok(true);
    }
    let status = file_status(fd)?;
    // Pipes and terminals have no limit.
    if !status.is_regular {
        return Ok(true);
    }
    // SAFETY: no memory is involved.
    let at = unsafe { call(number::LSEEK, [fd, 0, SEEK_CUR, 0, 0, 0]) }? as u64;
    let end = at.max(status.size).saturating_add(bytes as u64);
    Ok(end.saturating_add(OTHERS_BYTES) <= limit)
}

/// Allocates the file's space on disk, so that later stores to its mapping have a block to go to.
pub fn fallocate(fd: usize, length: usize) -> Result<usize, Errno> {
    // SAFETY: no memory is involved.
    unsafe { call(number::FALLOCATE, [fd, 0, 0, length, 0, 0]) }
}

/// Sets a file's size; what is new is a hole.
pub fn ftruncate(fd: usize, length: usize) -> Result<usize, Errno> {
    // SAFETY: no memory is involved.
    unsafe { call(number::FTRUNCATE, [fd, length, 0, 0, 0, 0]) }
}

/// Removes the file at `path`, which ends in a zero byte.
pub fn unlink(path: &[u8]) {
    debug_assert!(path.last() == Some(&0));
    // SAFETY: the path is readable and terminated.
    let _ = unsafe {
        call(
            number::UNLINKAT,
            [AT_FDCWD, path.as_ptr() as usize, 0, 0, 0, 0],
        )
    };
}

/// The result of fstat(2), as far as it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStatus {
    /// Device and file number.
    pub identity: [u64; 2],
    /// Size in bytes.
    pub size: u64,
    /// Last change: seconds since 1970, nanoseconds.
    pub changed: [u64; 2],
    /// It is a regular file, not a folder, pipe or device.
    pub is_regular: bool,
}

/// Calls fstat(2) on a descriptor.
pub fn file_status(fd: usize) -> Result<FileStatus, Errno> {
    let mut status = [0u64; 32];
    // SAFETY: the kernel's structure is smaller.
    unsafe {
        call(
            number::FSTAT,
            [fd, status.as_mut_ptr() as usize, 0, 0, 0, 0],
        )
    }?;
    let mode = if cfg!(target_arch = "x86_64") {
        status[3] as u32
    } else {
        status[2] as u32
    };
    // The structures of both processors have the others at the same places.
    Ok(FileStatus {
        identity: [status[0], status[1]],
        size: status[6],
        changed: [status[11], status[12]],
        is_regular: mode & 0o170_000 == 0o100_000,
    })
}

/// Was the descriptor opened for reading only?
pub fn is_read_only(fd: usize) -> bool {
    const F_GETFL: usize = 3;
    const O_ACCMODE: usize = 3;
    // SAFETY: no memory is involved.
    let flags = unsafe { call(number::FCNTL, [fd, F_GETFL, 0, 0, 0, 0]) };
    flags.is_ok_and(|flags| flags & O_ACCMODE == O_RDONLY)
}

//! Windows access lists. They are set when a file is created, so that others cannot open a file before it is protected.

use std::{
    ffi::OsString,
    fs, io,
    os::windows::{ffi::OsStrExt as _, io::FromRawHandle as _},
    path::{Component, Path, Prefix},
    ptr,
};

use windows_sys::{
    Win32::{
        Foundation::{ERROR_SUCCESS, GENERIC_WRITE, INVALID_HANDLE_VALUE, LocalFree},
        Security::{
            ACL,
            Authorization::{
                ConvertStringSecurityDescriptorToSecurityDescriptorW, SDDL_REVISION_1, SE_FILE_OBJECT,
                SetNamedSecurityInfoW,
            },
            DACL_SECURITY_INFORMATION, GetSecurityDescriptorDacl, GetSecurityDescriptorOwner,
            OWNER_SECURITY_INFORMATION, PROTECTED_DACL_SECURITY_INFORMATION, PSECURITY_DESCRIPTOR, PSID,
            SECURITY_ATTRIBUTES,
        },
        Storage::FileSystem::{
            CREATE_NEW, CreateDirectoryW, CreateFileW, FILE_ATTRIBUTE_NORMAL, FILE_SHARE_DELETE,
            FILE_SHARE_READ, FILE_SHARE_WRITE,
        },
    },
    core::BOOL,
};

use crate::host::access_list;

/// Creates a file for writing.
#[allow(unsafe_code)]
pub(super) fn create_file(path: &Path, mode: u32) -> io::Result<fs::File> {
    let (path, descriptor) = (wide(path)?, Descriptor::of(mode, false)?);
    // With the sharing mode of the standard library: others may open, rename and remove it.
    let share = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;
    // SAFETY: path and attributes are valid until the call returns; no template is given.
    let handle = unsafe {
        CreateFileW(
            path.as_ptr(),
            GENERIC_WRITE,
            share,
            &descriptor.attributes(),
            CREATE_NEW,
            FILE_ATTRIBUTE_NORMAL,
            ptr::null_mut(),
        )
    };
    if handle == INVALID_HANDLE_VALUE {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the handle is open and has no other owner.
    Ok(unsafe { fs::File::from_raw_handle(handle) })
}

/// Creates a directory.
#[allow(unsafe_code)]
pub(super) fn create_directory(path: &Path, mode: u32) -> io::Result<()> {
    let (path, descriptor) = (wide(path)?, Descriptor::of(mode, true)?);
    // SAFETY: path and attributes are valid until the call returns.
    match unsafe { CreateDirectoryW(path.as_ptr(), &descriptor.attributes()) } {
        0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Replaces owner and access list of an existing path; entries of a directory without their own list inherit it.
#[allow(unsafe_code)]
pub(super) fn set(path: &Path, mode: u32) -> io::Result<()> {
    let descriptor = Descriptor::of(mode, fs::symlink_metadata(path)?.is_dir())?;
    let path = wide(path)?;
    let (mut owner, mut list): (PSID, *mut ACL) = (ptr::null_mut(), ptr::null_mut());
    let (mut present, mut defaulted): (BOOL, BOOL) = (0, 0);
    // SAFETY: the descriptor is valid; owner and list point into it, and are used only while it lives.
    let error = unsafe {
        if GetSecurityDescriptorOwner(descriptor.0, &mut owner, &mut defaulted) == 0
            || GetSecurityDescriptorDacl(descriptor.0, &mut present, &mut list, &mut defaulted) == 0
        {
            return Err(io::Error::last_os_error());
        }
        SetNamedSecurityInfoW(
            path.as_ptr(),
            SE_FILE_OBJECT,
            OWNER_SECURITY_INFORMATION | DACL_SECURITY_INFORMATION | PROTECTED_DACL_SECURITY_INFORMATION,
            owner,
            ptr::null_mut(),
            list,
            ptr::null(),
        )
    };
    if error == ERROR_SUCCESS { Ok(()) } else { Err(io::Error::from_raw_os_error(error.cast_signed())) }
}

/// Owner and access list as a security descriptor.
struct Descriptor(PSECURITY_DESCRIPTOR);

impl Descriptor {
    #[allow(unsafe_code)]
    fn of(mode: u32, directory: bool) -> io::Result<Self> {
        let text: Vec<u16> = access_list::describe(mode, directory).encode_utf16().chain([0]).collect();
        let mut made = ptr::null_mut();
        // SAFETY: the text is NUL-terminated; the result is freed below.
        let done = unsafe {
            ConvertStringSecurityDescriptorToSecurityDescriptorW(
                text.as_ptr(),
                SDDL_REVISION_1,
                &mut made,
                ptr::null_mut(),
            )
        };
        if done == 0 { Err(io::Error::last_os_error()) } else { Ok(Self(made)) }
    }

    /// The attributes for a new file; valid as long as the descriptor.
    fn attributes(&self) -> SECURITY_ATTRIBUTES {
        let size = size_of::<SECURITY_ATTRIBUTES>() as u32;
        SECURITY_ATTRIBUTES { nLength: size, lpSecurityDescriptor: self.0, bInheritHandle: 0 }
    }
}

impl Drop for Descriptor {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: the system allocated it with LocalAlloc, and it is freed only here.
        unsafe { LocalFree(self.0) };
    }
}

/// A path for the system: absolute, NUL-terminated, and with the prefix for paths longer than 260 characters.
fn wide(path: &Path) -> io::Result<Vec<u16>> {
    let path = std::path::absolute(path)?;
    let mut text = OsString::new();
    match path.components().next() {
        Some(Component::Prefix(prefix)) if matches!(prefix.kind(), Prefix::Disk(_)) => {
            text.push(r"\\?\");
            text.push(&path);
        }
        _ => text.push(&path),
    }
    let mut wide: Vec<u16> = text.encode_wide().collect();
    if wide.contains(&0) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    wide.push(0);
    Ok(wide)
}

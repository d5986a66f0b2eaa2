// Package baddisk is disks, for tests, that are full, or fail when they are to write out what they were given. Such a
// disk stands between SQLite and the operating system: the default VFS becomes one whose files, where they lie in
// the folder of a Disk, write and sync by way of it. There is nothing of it but on Linux.
package baddisk

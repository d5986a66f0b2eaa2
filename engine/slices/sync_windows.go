package slices

// syncDir does nothing: NTFS keeps names in its journal.
func syncDir(string) error { return nil }

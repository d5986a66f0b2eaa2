package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
)

// batchPrefix is what every batch's ID begins with.
const batchPrefix = "batch_"

// find returns the ID of a batch: what was given is one, or is the file that the batch was made of. Of several of
// one file it is the newest.
func (f *serverFlags) find(ctx context.Context, given string) (string, error) {
	if strings.HasPrefix(given, batchPrefix) {
		return given, nil
	}
	var list struct {
		Data []batchState `json:"data"`
	}
	if _, err := f.call(ctx, http.MethodGet, "batches?limit=100", "", nil, &list); err != nil {
		return "", err
	}
	for i := range list.Data {
		var file struct {
			Name string `json:"filename"`
		}
		if _, err := f.call(ctx, http.MethodGet, "files/"+url.PathEscape(list.Data[i].Input), "", nil, &file); err != nil {
			continue // its input may have been deleted
		}
		if file.Name == filepath.Base(given) {
			return list.Data[i].ID, nil
		}
	}
	return "", fmt.Errorf("no batch of a file %q is among the newest at %s; kvasir batch status lists them by ID", filepath.Base(given), f.Server)
}

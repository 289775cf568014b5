//go:build generated

// A client that oapi-codegen generates from /openapi.json walks both lists and
// meets the answers that it has to tell apart. What came is on standard output,
// in the form that clients_test.go reads.
package main

import (
	"context"
	"encoding/json"
	"log"
	"net/http"
	"os"
)

func main() {
	type refusal struct {
		Status     int               `json:"status"`
		Code       string            `json:"code"`
		Message    string            `json:"message"`
		Details    map[string]string `json:"details,omitempty"`
		RetryAfter int               `json:"retryAfter,omitempty"`
	}
	var report struct {
		Items        []string `json:"items"`
		Contacts     []string `json:"contacts"`
		Usage        float64  `json:"usage"`
		Unchanged    int      `json:"unchanged"`
		Invalid      refusal  `json:"invalid"`
		Unauthorized refusal  `json:"unauthorized"`
		Limited      refusal  `json:"limited"`
	}
	ctx, client := context.Background(), connect(os.Getenv("KEY"))
	limit := 7

	var cursor *string
	for more := true; more; {
		page := must(client.ListItemsWithResponse(ctx, &ListItemsParams{Limit: &limit, Cursor: cursor})).JSON200
		for _, item := range page.Data {
			report.Items = append(report.Items, item.Id.String())
			report.Usage = max(report.Usage, item.Usage30)
		}
		more, cursor = page.Page.HasMore, page.Page.NextCursor
	}
	cursor = nil
	for more := true; more; {
		page := must(client.ListContactsWithResponse(ctx, &ListContactsParams{Limit: &limit, Cursor: cursor})).JSON200
		for _, contact := range page.Data {
			report.Contacts = append(report.Contacts, contact.Id.String())
		}
		more, cursor = page.Page.HasMore, page.Page.NextCursor
	}

	first := must(client.ListItemsWithResponse(ctx, &ListItemsParams{}))
	etag := first.Headers200.ETag
	report.Unchanged = must(client.ListItemsWithResponse(ctx, &ListItemsParams{IfNoneMatch: &etag})).StatusCode()

	tooMany := 101
	invalid := must(client.ListItemsWithResponse(ctx, &ListItemsParams{Limit: &tooMany}))
	report.Invalid = refusal{Status: invalid.StatusCode(), Code: string(invalid.JSON400.Error.Code), Message: invalid.JSON400.Error.Message,
		Details: *invalid.JSON400.Error.Details}

	unauthorized := must(connect("none").ListItemsWithResponse(ctx, &ListItemsParams{}))
	report.Unauthorized = refusal{Status: unauthorized.StatusCode(), Code: string(unauthorized.JSON401.Error.Code), Message: unauthorized.JSON401.Error.Message}

	limited := connect(os.Getenv("LIMITED_KEY")) // to one request
	must(limited.ListItemsWithResponse(ctx, &ListItemsParams{}))
	refused := must(limited.ListItemsWithResponse(ctx, &ListItemsParams{}))
	report.Limited = refusal{Status: refused.StatusCode(), Code: string(refused.JSON429.Error.Code), Message: refused.JSON429.Error.Message,
		RetryAfter: refused.Headers429.RetryAfter}

	if err := json.NewEncoder(os.Stdout).Encode(report); err != nil {
		log.Fatal(err)
	}
}

func connect(key string) *ClientWithResponses {
	return must(NewClientWithResponses(os.Getenv("NODE"), WithRequestEditorFn(func(_ context.Context, r *http.Request) error {
		r.Header.Set("X-API-Key", key)
		return nil
	})))
}

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}

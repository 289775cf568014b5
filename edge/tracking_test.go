package edge

import (
	"strings"
	"testing"

	"listedge/cache"
	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/internal/page"
)

func TestCursorsOfChangesAreStrict(t *testing.T) {
	mine, text := page.Query{List: listtest.Items, Tenant: listtest.ID(7), Limit: 50}, func(q page.Query) string {
		return string(q.AppendTracking(nil, &page.Tracking{Kind: page.AtEnd, Epoch: 1}))
	}
	ours, other, filtered := text(mine), mine, mine
	other.Tenant, filtered.Match = listtest.ID(8), listtest.Goods
	byName := *listtest.Items
	byName.Orders = byName.Orders[listtest.ByName:]
	for query, want := range map[string]string{
		"changes": "", "changes&type=goods&limit=7&search=&sort=createdAt": "", ours: "", text(filtered) + "&type=goods": "",
		"changes&search=a": "search", "changes&sort=name": "sort", ours[1:]: "malformed", ours + "A": "malformed", "Changes": "malformed",
		text(other): "another workspace", text(filtered): "another workspace", ours + "&type=goods": "another workspace",
		text(page.Query{List: listtest.Contacts, Tenant: mine.Tenant}): "another workspace",
	} {
		asked := request{Query: page.Query{List: mine.List, Tenant: mine.Tenant}}
		wrong := endpointOf(mine.List).parseQuery(&asked, []byte("cursor="+query), new([]byte))
		if want == "" && (wrong != nil || !asked.tracks) || want != "" && !strings.Contains(wrong["cursor"], want) {
			t.Errorf("%s: %t, %v, want %q", query, asked.tracks, wrong, want)
		}
	}
	asked := request{Query: page.Query{List: &byName, Tenant: mine.Tenant}}
	if wrong := endpointOf(&byName).parseQuery(&asked, []byte("cursor=changes"), new([]byte)); !strings.Contains(wrong["cursor"], "no changes to follow") {
		t.Errorf("a list that does not track: %v", wrong)
	}
}

func TestHeadersOfChanges(t *testing.T) {
	place := func(n int) list.Position {
		row := listtest.Item(n)
		return listtest.Items.Position(&row, 0)
	}
	for want, c := range map[string]cache.Covers{
		"none": {None: true}, "all": {},
		`after="2025-12-31T23:59:59.000Z ` + listtest.ID(1) + `"`:                                                            {After: place(1)},
		`through="2025-12-31T23:59:58.000Z ` + listtest.ID(2) + `"`:                                                          {Through: place(2)},
		`after="2025-12-31T23:59:59.000Z ` + listtest.ID(1) + `", through="2025-12-31T23:59:58.000Z ` + listtest.ID(2) + `"`: {After: place(1), Through: place(2)},
	} {
		var h header
		if h.covers(listtest.Items, c, false); string(h) != want {
			t.Errorf("%s, want %s", h, want)
		}
	}
	var h header
	if h.covers(listtest.Items, cache.Covers{None: true}, true); string(h) != "none, gone" {
		t.Errorf("%s where rows are gone", h)
	}
}

// A node that follows no changes answers nobody who tracks a list, and says when to ask again. Preconditions and limits
// hold as for other pages.
func TestChangesThatAreNotProven(t *testing.T) {
	s, ctx := hitServer(t, "1")
	ask := func(method, target string, headers ...string) answered {
		ctx.Request.Reset()
		ctx.Request.Header.SetMethod(method)
		ctx.Request.SetRequestURI(target)
		ctx.Request.Header.Set("X-API-Key", aKey)
		for i := 0; i < len(headers); i += 2 {
			ctx.Request.Header.Set(headers[i], headers[i+1])
		}
		return answerTo(t, s, ctx)
	}
	const target = "/v1/items?cursor=changes"
	got := ask("GET", target)
	if got.Status != 503 || got.Header("Retry-After") != "1" || got.Header("Cache-Control") != "no-store" || !strings.Contains(got.Body, "same cursor") {
		t.Errorf("%+v", got)
	}
	if got := ask("GET", target, "If-Match", `W/"a"`); got.Status != 412 {
		t.Errorf("If-Match: %+v", got)
	}
	if got := ask("GET", target, "If-Match", "*"); got.Status != 503 {
		t.Errorf("If-Match: *: %+v", got)
	}
	if got := ask("GET", target+"&search=x"); got.Status != 400 || !strings.Contains(got.Body, "leave search out") {
		t.Errorf("a search: %+v", got)
	}
}

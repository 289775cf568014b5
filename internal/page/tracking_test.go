package page

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
	"slices"
	"strings"
	"testing"

	"listedge/internal/changefeed"
	"listedge/internal/list/listtest"
)

// tracked are cursors of all kinds of clients of the query.
func tracked(q *Query) (all []Tracking) {
	row := listtest.Row(q.List, "id", maxID, "created_at", "1969-12-31 23:59:59.999999+00")
	high := changefeed.Position{Term: math.MaxUint64, N: math.MaxUint64}
	for _, at := range []changefeed.Position{{}, {Term: 1, N: 1 << 32}, high} {
		all = append(all, Tracking{Kind: AtEnd, Epoch: EpochOf("an epoch", q.List), Seen: at},
			Tracking{Kind: InDelta, Epoch: math.MaxUint64, Seen: high, Since: changefeed.Point{At: at, Ordinal: 1<<32 - 2}},
			Tracking{Kind: InFull, Seen: at, After: q.List.Position(&row, 0)})
	}
	return all
}

func TestACursorSaysWhatAClientKnows(t *testing.T) {
	q := Query{List: listtest.Items, Tenant: "7", Match: listtest.Tracked}
	for _, want := range append(tracked(&q), Tracking{}) {
		cursor := q.AppendTracking([]byte("before "), &want)[len("before "):]
		got, err := q.ParseTracking(cursor)
		if err != nil || got != want || !IsTracking(cursor) || len(cursor) > MaxCursor || strings.ContainsAny(string(cursor), `"\+/= `) {
			t.Errorf("%+v became %s, and that %+v, %v", want, cursor, got, err)
		}
	}
	at := Tracking{Kind: AtEnd, Seen: changefeed.Position{Term: 3, N: 4}}
	if at.Known() != changefeed.EndOf(at.Seen) || at.Known().Compare(changefeed.Point{At: at.Seen, Ordinal: 9}) <= 0 {
		t.Error("a client at the end does not know all")
	}
	q.After = positions(&q)[0]
	if IsTracking(q.AppendCursor(nil)) {
		t.Error("any cursor is one of a client that tracks")
	}
	if EpochOf("an epoch", listtest.Items) == EpochOf("another", listtest.Items) || EpochOf("an epoch", listtest.Items) == EpochOf("an epoch", listtest.Contacts) {
		t.Error("states of two epochs can be compared")
	}
}

func TestACursorOfAnotherWorkspaceIsForeign(t *testing.T) {
	from := Query{List: listtest.Items, Tenant: "7", Match: listtest.Tracked, Limit: 3}
	cursor := from.AppendTracking(nil, &tracked(&from)[0])
	for why, to := range map[string]Query{
		"workspace": {List: listtest.Items, Tenant: "8", Match: listtest.Tracked}, "filters": {List: listtest.Items, Tenant: "7"},
		"list": {List: listtest.Contacts, Tenant: "7", Match: listtest.Tracked}, "order": {List: listtest.Items, Tenant: "7", Match: listtest.Tracked, Order: 1},
	} {
		if got, err := to.ParseTracking(cursor); !errors.Is(err, ErrCursorForeign) || got != (Tracking{}) {
			t.Errorf("another %s: %+v, %v", why, got, err)
		}
	}
}

func TestAMangledTrackingCursorIsMalformed(t *testing.T) {
	q := Query{List: listtest.Items, Tenant: "7"}
	refused := func(cursor []byte) {
		t.Helper()
		if got, err := q.ParseTracking(cursor); !errors.Is(err, ErrCursorMalformed) || got != (Tracking{}) {
			t.Errorf("%s: %+v, %v", cursor, got, err)
		}
	}
	for _, is := range tracked(&q) {
		cursor := q.AppendTracking(nil, &is)
		for i := range cursor {
			mangled := bytes.Clone(cursor)
			mangled[i] ^= 1
			refused(mangled)
			refused(cursor[:i])
			refused(slices.Insert(bytes.Clone(cursor), i, '\n'))
		}
		raw, _ := base64.RawURLEncoding.DecodeString(string(cursor))
		for _, change := range []func() []byte{
			func() []byte { raw[21] = byte(InFull) + 3; return raw },                // no kind
			func() []byte { raw[21] = byte(Untracked); return raw },                 // has no cursor but a word
			func() []byte { raw[21] = byte(is.Kind); return append(raw, 0) },        // too long
			func() []byte { raw[4] = cursorVersion; return raw },                    // of another kind
			func() []byte { raw[4] = trackingVersion; return raw[:trackingHead-1] }, // too short
		} {
			forged := change()
			binary.BigEndian.PutUint32(forged, crc32.Checksum(forged[4:], castagnoli))
			refused(base64.RawURLEncoding.AppendEncode(nil, forged))
		}
	}
	for _, text := range []string{"", "change", "changes ", "Changes", strings.Repeat("A", 1000)} {
		refused([]byte(text))
	}
}

func TestTextsOfHeaders(t *testing.T) {
	for text, want := range map[string]string{
		"": `""`, listtest.ID(7): `"` + listtest.ID(7) + `"`, `a "b" \ %`: `"a \"b\" \\ %"`,
		"é": `%"%c3%a9"`, "a \"b\" \\ %\x00茶": `%"a %22b%22 \ %25%00%e8%8c%b6"`,
	} {
		if got := string(AppendHeaderText(nil, text)); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
	if most := len(AppendHeaderText(nil, strings.Repeat("é", 127)+"x")); most > MaxGoneBytes {
		t.Errorf("the longest key has %d bytes", most)
	}
}

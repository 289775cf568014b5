package admin

import (
	"encoding/json"
	"testing"
	"time"

	"listedge/origin/apikey"
)

func TestQuotasOfWorkspaces(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	admin := openAdmin(t, url)
	rate := 5.0
	month, day := &apikey.Quota{Requests: 1_000_000, Period: apikey.Month}, &apikey.Quota{Requests: apikey.MaxQuota, Period: apikey.Day}
	w, err := admin.CreateWorkspace(t.Context(), "W", nil, nil, month)
	for i, step := range []struct {
		rate  *float64
		quota *apikey.Quota
		want  string
	}{
		{nil, nil, `{"requests":1000000,"period":"month"}`}, // as it was created
		{&rate, nil, `{"requests":1000000,"period":"month"}`},
		{nil, day, `{"requests":4000000000,"period":"day"}`},
		{nil, &apikey.Quota{}, `null`},
		{&rate, nil, `null`},
		{nil, month, `{"requests":1000000,"period":"month"}`},
	} {
		if i > 0 {
			w, err = admin.UpdateWorkspace(t.Context(), w.ID, step.rate, nil, step.quota)
		}
		must(err)
		list, err := admin.Workspaces(t.Context())
		if err != nil || len(list) != 1 {
			t.Fatal(list, err)
		}
		for _, row := range []Workspace{w, list[0]} {
			if got, _ := json.Marshal(row.Quota); string(got) != step.want {
				t.Errorf("step %d: %s instead of %s", i, got, step.want)
			}
		}
	}
}

// What is used of a quota is what was counted in its present period, but for 304s and 429s.
func TestWhatIsUsedOfAQuota(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	admin, conn := openAdmin(t, url), connect(t, url)
	for _, period := range []apikey.Period{apikey.Day, apikey.Month} {
		w, err := admin.CreateWorkspace(t.Context(), "W", nil, nil, &apikey.Quota{Requests: 100, Period: period})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(t.Context(), `INSERT INTO key_usage SELECT $1, hour, gen_random_uuid(), 10, 2, 3, 0, 0, 0
			FROM unnest(ARRAY[date_trunc($2, now(), 'UTC'), date_trunc($2, now(), 'UTC') - interval '1 hour', date_trunc('hour', now())]) hour`,
			w.ID, string(period)); err != nil {
			t.Fatal(err)
		}
		u, err := admin.Usage(t.Context(), w.ID, time.Hour)
		if err != nil || u.QuotaUsed == nil || *u.QuotaUsed != 10 || u.Quota.Requests != 100 {
			t.Errorf("%s: %+v, %v", period, u, err)
		}
	}
	list, err := admin.Workspaces(t.Context())
	if err != nil || len(list) != 2 || *list[0].QuotaUsed != 10 || *list[1].QuotaUsed != 10 {
		t.Errorf("%+v, %v", list, err)
	}
}

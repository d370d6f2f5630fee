"""A server shows the metric at a scrape, and the dashboard has its panel."""

import json
import sys
from pathlib import Path
from urllib.request import urlopen

sys.path.append(str(Path(__file__).parents[1]))

import numpy as np
from serving import serving

from packhorse.dataset import PlanOptions
from packhorse.prepare import prepare

root = Path(sys.argv[1])
prepare(lengths=np.array([5, 3, 3]), output=root / "corpus", plan=PlanOptions(max_seq_len=8))
with serving(root, "packhorse: metrics at ") as (url,), urlopen(url) as scraped:
    assert 'packhorse_dataset_lengths{dataset="corpus"} 2.0' in scraped.read().decode()
for dashboard in ("deploy/grafana/packhorse.json", "deploy/helm/packhorse/files/dashboard.json"):
    assert "packhorse_dataset_lengths" in json.dumps(json.loads(Path(dashboard).read_text()))

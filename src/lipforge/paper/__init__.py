"""The paper's tables as data, and a checklist for published robust accuracies."""

from lipforge.paper.checklist import RULES, Finding, Rule, RuleCount, TableAudit, check_table
from lipforge.paper.settings import PaperModel, Settings, load_settings
from lipforge.paper.tables import UNSTATED, Published, load_paper, read_table

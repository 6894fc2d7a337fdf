"""The method: masks, where they go, how their bounds are found, and how to take them out again."""

from lipforge.forge.calibrate import calibrate_, forge_
from lipforge.forge.fold import Fold, ZeroCounts, count_zeros, fold_, load_fold, with_fold
from lipforge.forge.head import Head, head_of, set_head_
from lipforge.forge.insert import forges, insert_, remove_, set_mode_, set_ratio_
from lipforge.forge.layer import Forge
from lipforge.forge.masks import Mask, MeanCentred, Piecewise, Smooth, Step, parse_mask
from lipforge.forge.recipe import Recipe, load_recipe, recipe_of, save_recipe
from lipforge.forge.sites import RULES, Site, Survey, find_sites
from lipforge.forge.tta import TTA, Transform, set_tta_, tta_of
from lipforge.forge.views import forged, plain, smooth_backward, straight_through, with_tta

import csv
import os
import random

random.seed(9)
os.makedirs("data", exist_ok=True)
work = ["Private", "Self-emp", "Gov", "Never", "?"]
edu = ["HS-grad", "Some-college", "Bachelors", "Masters", "Doctorate", "11th"]
mar = ["Married", "Divorced", "Never-married", "Widowed"]
occ = ["Tech", "Sales", "Exec", "Craft", "Clerical", "Other", "?"]
for name, n in (("adult_train.csv", 3000), ("adult_test.csv", 500)):
    with open("data/" + name, "w", newline="") as f:
        w = csv.writer(f)
        w.writerow("age,education_num,capital_gain,capital_loss,hours_per_week,workclass,education,marital,occupation,income".split(","))
        for _ in range(n):
            a, e, h = random.randint(17, 90), random.randint(1, 16), random.randint(1, 99)
            y = ">50K" if a + 4 * e + h + random.gauss(0, 20) > 150 else "<=50K"
            w.writerow([a, e, random.choice([0, 0, 0, 5178, 7298]), random.choice([0, 0, 1902]), h,
                        random.choice(work), random.choice(edu), random.choice(mar), random.choice(occ), y])
